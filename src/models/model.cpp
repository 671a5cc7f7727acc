#include "models/model.h"

namespace riptide {

Tensor Model::forward(Context& ctx, const Batch& batch, const States& states) const {
    Tensor x = embed(ctx, batch);
    for (int64_t l = 0; l < info().num_hidden_layers; ++l) layer(ctx, l, x, batch, states);
    return logits(ctx, x, batch);
}

}  // namespace riptide
