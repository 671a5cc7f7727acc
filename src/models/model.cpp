#include "models/model.h"

#include "ops/capture.h"

namespace riptide {

void FeatureCapture::take(Context& ctx, int64_t l, const Tensor& x) {
    for (size_t i = 0; i < layers.size(); ++i)
        if (layers[i] == l) ops::copy_columns(ctx, x, out, static_cast<int64_t>(i) * x.shape[1]);
}

Tensor Model::forward(Context& ctx, const Batch& batch, const States& states, FeatureCapture* capture) const {
    Tensor x = embed(ctx, batch);
    if (capture != nullptr) capture->take(ctx, -1, x);
    for (int64_t l = 0; l < info().num_hidden_layers; ++l) {
        layer(ctx, l, x, batch, states);
        if (capture != nullptr) capture->take(ctx, l, x);
    }
    return logits(ctx, x, batch);
}

}  // namespace riptide
