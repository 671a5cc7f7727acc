#include "apps/convert/packed_plan.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "apps/convert/float_rounding.h"
#include "base/error.h"
#include "io/content.h"
#include "io/tensor_table.h"

namespace riptide::apps {

namespace {

bool is_float(DType type) { return type == DType::f32 || type == DType::f16 || type == DType::bf16; }

/// "model.layers.1.mlp.experts.0.gate_proj" -> what it shares its global scale with, "...experts.0.gate_up"; "down" for
/// down_proj; empty if the module is not a feed-forward's matrix of a text model's layer.
std::string shared_name(const std::string& module) {
    const size_t dot = module.rfind('.');
    const std::string last = module.substr(dot + 1);
    const bool inside = module.find("layers.") != std::string::npos && module.find(".mlp.") != std::string::npos &&
                        module.find("mtp.") == std::string::npos;
    if (!inside || (last != "gate_proj" && last != "up_proj" && last != "down_proj")) return {};
    return module.substr(0, dot) + (last == "down_proj" ? ".down" : ".gate_up");
}

Weight rows_of(const TensorInfo& t, int64_t first, int64_t rows) {
    Weight w;
    w.dtype = t.dtype;
    w.rows = rows;
    w.cols = t.shape.back();
    w.row_bytes = row_bytes(t.dtype, w.cols);
    w.data = t.bytes.data() + first * w.row_bytes;
    return w;
}

}  // namespace

int64_t PackedTensor::bytes() const { return stored_bytes(name, dtype, shape); }

int64_t PackedItem::bytes() const {
    int64_t sum = 0;
    for (const PackedTensor& tensor : made) sum += tensor.bytes();
    return sum;
}

PackedPlan::PackedPlan(const Checkpoint& checkpoint, PackedType type) : type_(type) {
    for (const TensorInfo& t : checkpoint.tensors()) add(t);
    RT_CHECK(report.matrices > 0,
             "{}: no matrix to round: none is called ...mlp....gate_proj.weight, up_proj or "
             "down_proj",
             checkpoint.path());
    for (const PackedItem& item : items) report.bytes += item.bytes();
}

void PackedPlan::add(const TensorInfo& t) {
    constexpr std::string_view kStacks[] = {".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"};
    for (const std::string_view stack : kStacks)
        if (t.name.ends_with(stack) && t.shape.size() == 3 &&
            !shared_name(t.name.substr(0, t.name.rfind('.')) + ".0.down_proj").empty())
            return add_stack(t);
    const bool matrix = t.shape.size() == 2 && t.name.ends_with(".weight");
    const std::string module = matrix ? t.name.substr(0, t.name.size() - 7) : "";
    if (matrix && !shared_name(module).empty()) return add_matrix(t, module, rows_of(t, 0, t.shape[0]));
    if (matrix && !module.ends_with("embed_tokens")) kept.insert(module);
    keep(t, t.name, {}, t.shape);
}

void PackedPlan::add_stack(const TensorInfo& t) {
    const size_t dot = t.name.rfind('.');
    const bool both = t.name.ends_with("gate_up_proj");
    const int64_t stored = t.shape[1], rows = both ? stored / 2 : stored;
    RT_CHECK(!both || stored % 2 == 0, "{}: tensor {} has shape {}, expected an even number of rows", t.file,
             printable(t.name), shape_text(t.shape));
    for (int64_t e = 0; e < t.shape[0]; ++e) {
        const std::string expert = fmt::format("{}.{}.", t.name.substr(0, dot), e);
        if (!both) add_matrix(t, expert + "down_proj", rows_of(t, e * stored, rows));
        if (both) add_matrix(t, expert + "gate_proj", rows_of(t, e * stored, rows));
        if (both) add_matrix(t, expert + "up_proj", rows_of(t, e * stored + rows, rows));
    }
}

void PackedPlan::add_matrix(const TensorInfo& t, const std::string& module, const Weight& w) {
    RT_CHECK(is_float(t.dtype), "{}: tensor {} is {}, expected f32, f16 or bf16: the folder is quantised already",
             t.file, printable(t.name), dtype_name(t.dtype));
    if (type_ == PackedType::nvfp4 && w.cols % kNvfp4Group != 0) {
        kept.insert(module);
        ++report.odd;
        return keep(t, module + ".weight", w, {w.rows, w.cols});
    }
    PackedItem item{&t, w, shared_name(module), {}};
    const auto blocks = [](int64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
    if (type_ == PackedType::fp8)
        item.made = {{module + ".weight", DType::f8_e4m3, {w.rows, w.cols}},
                     {module + ".weight_scale", DType::bf16, {blocks(w.rows), blocks(w.cols)}}};
    else
        item.made = {{module + ".weight_packed", DType::u8, {w.rows, w.cols / 2}},
                     {module + ".weight_scale", DType::f8_e4m3, {w.rows, w.cols / kNvfp4Group}},
                     {module + ".weight_global_scale", DType::f32, {1}}};
    packed.insert(module);
    ++report.matrices;
    items.push_back(std::move(item));
}

void PackedPlan::keep(const TensorInfo& t, const std::string& name, const Weight& part, std::vector<int64_t> shape) {
    ++report.copied;
    items.push_back({&t, part, "", {{name, t.dtype, std::move(shape)}}});
}

}  // namespace riptide::apps
