// DFlash drafters as GGUF, in the dialect of Lucebox.
#pragma once

#include <string>
#include <vector>

#include "apps/convert/gguf_layout.h"
#include "io/checkpoint.h"
#include "models/binder.h"
#include "models/dflash_config.h"

namespace riptide::apps {

/// One tensor of the file and where its values are in the Hugging Face folder.
struct DrafterTensor {
    LayoutTensor tensor;
    TensorNames source;
    int64_t first_row = 0;         // of the source that holds this matrix, for a part of qkv_proj
    int64_t source_rows = 0;       // of the whole source; 0: as many as the tensor has
    bool integers = false;         // d2t: stored as i32
    bool keeps_precision = false;  // fc and the head: q8_0 at least, since what they read or decide is large
};

/// All tensors in the order of the file. Throws Error as dflash_config does.
std::vector<DrafterTensor> drafter_tensors(const Checkpoint& checkpoint, const DflashConfig& config);

/// A drafter's fc and head are q8_0 at least.
DType drafter_type(DType type);

/// The hyper-parameter keys, general.architecture ("dflash-draft") and general.name included: those of Lucebox, and
/// dflash.causal, dflash.draft_vocab_size, dflash.num_target_layers, dflash.sample_from_anchor of our own where they
/// say more. Throws Error for what these keys cannot say: two different ropes.
void write_drafter_metadata(const DflashConfig& config, const std::string& name, GgufWriter& writer);

}  // namespace riptide::apps
