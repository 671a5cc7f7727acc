#include "text/tokenizer/detokenizer.h"

namespace riptide {

std::string Detokenizer::push(int32_t id) {
    std::string out;
    if (special_ == Special::hide && tokenizer_->is_special(id)) return out;
    stream_.push(tokenizer_->piece(id), out);
    return out;
}

std::string Detokenizer::finish() {
    std::string out;
    stream_.finish(out);
    return out;
}

}  // namespace riptide
