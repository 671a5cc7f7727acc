// THE TABLE for sparse layers: which kernels choose the experts and which compute them. Read the tables in plan.cpp
// from top to bottom, as in ../linear/plan.h; a shared expert of another width is a pair of that plan.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/linear/plan.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::moe {

struct Case {
    Family family = Family::decode;
    int64_t rows = 0;
    bool normed = true;              // x is to be normalised,
    bool aligned = true;             // by weights at a multiple of sixteen bytes
    bool words = false;              // and brings the words of the router (../linear/shared/router_words.h)
    const Weight* router = nullptr;  // null: the experts are chosen already
    int64_t top_k = 0;
    const ExpertWeights* experts = nullptr;
    SharedExpert shared = {};
    Chip chip;
};

enum class Router {
    none,            // chosen already
    words,           // the product before has left them; who computes chooses
    words_row1,      // router_words_row1.cuh: the same, left there
    row1,            // router_row1.cuh; gate and up choose from keys
    float_product,   // the product is a kernel of ../linear, gate and up choose
    rows_norm,       // router_rows.cu: rows of 2,048 columns, normalised there; who computes chooses
    words_rows,      // router_rows.cu: any rows of 2,048 columns, normalised there, choice behind
    rows,            // router_rows.cu, rows prepared before, choice behind
    product,         // any product, then a choice of its own
    any,             // moe_decode.cu
    prefill_sm90,    // router_prefill_sm90.cu
    prefill_tensor,  // router_prefill.cu
    prefill_any,
};
enum class Experts {
    row1_sm90,
    rows8,
    grouped_sm80,
    float_experts,
    any,
    fp8_sm90,      // prefill
    dequant_sm90,  // grouped GEMM, experts decoded in it
    bf16_sm90,     // expanded before
    bf16_sm80,
};
/// "router_row1"; the source file below src/ops/cuda, "moe/router_row1.cuh".
const char* router_name(Router router);
const char* router_file(Router router);
const char* experts_name(Experts experts);
const char* experts_file(Experts experts);

struct Choice {
    Router router = Router::none;
    Experts up = Experts::any, down = Experts::any;  // different in prefill only
    bool separate = false;                           // the shared expert has launches of its own
    bool words = false;  // the logits of the router are those of ../linear/shared/router_words.h
    bool share = false;  // who normalises the rows also multiplies them with the shared expert's share
};
/// Throws Error if rows this long fit in no kernel.
Choice choose(const Case& c);
/// Whether words of the router would be taken, if the product before left them.
bool takes_words(Case c);

/// That of the prefill family: the same for any number of rows, since their sums differ.
Router prefill_router(const Chip& chip, const Weight& router);
/// Whether grouped GEMMs decode such experts, `stride` bytes apart, themselves.
bool dequant_weight(const Chip& chip, const Weight& w, int64_t stride);
/// Whether both have planes of one kind, or both are floats.
bool same_kind(const Weight& a, const Weight& b);
/// Whether the shared expert has launches of its own in decoding: it is of another width or kind.
bool shared_apart(const ExpertWeights& experts, const SharedExpert& shared);
/// Whether all experts have copies in FP8, one behind the other, and the shared one too.
bool fp8_experts(const ExpertWeights& w, const SharedExpert& shared);

}  // namespace riptide::ops::cuda::moe
