// The eight levels of TQ3_0, shared by the codec and the dot products.
#pragma once

namespace riptide {

/// Level of code q, ascending: the Lloyd-Max quantiser of one coordinate of a random point on the unit sphere in 128
/// dimensions (nearly a Gaussian of standard deviation 1/sqrt(128)). Source: Zandieh et al., TurboQuant (2025).
inline constexpr float kTQ3Values[8] = {-0.190685f, -0.117832f, -0.065717f, -0.021460f,
                                        0.021460f,  0.065717f,  0.117832f,  0.190685f};
/// The decision points: the code of x / d is the number of points that do not exceed it.
inline constexpr float kTQ3Edges[7] = {-0.154259f, -0.091775f, -0.043589f, 0.0f, 0.043589f, 0.091775f, 0.154259f};

}  // namespace riptide
