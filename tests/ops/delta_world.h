// Sequences of random tokens with the state of one Gated DeltaNet layer: the same tokens can be fed in any steps,
// batches and trees, and each row's output and the states compared. Unused memory is NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ops/gated_delta.h"
#include "tests/ops/op_fixture.h"

namespace riptide {

struct DeltaShape {
    int64_t key_heads = 2;
    int64_t value_heads = 4;
    int64_t key_dim = 32;
    int64_t value_dim = 32;
    int64_t conv_width = 4;
    DeltaHeads heads = DeltaHeads::grouped;
    float decay = 0.5f;  // about -g of a token
    float gate = 1.0f;   // scale of b: how near beta comes to 0 and 1
    int32_t slots = 12;
    int64_t stash_rows = 256;
    bool by_chunks = false;
};

inline std::string shape_name(const DeltaShape& s) {
    return fmt::format("{}/{} heads of {} x {}, width {}, {}, decay {}, gate {}", s.key_heads, s.value_heads, s.key_dim,
                       s.value_dim, s.conv_width, s.heads == DeltaHeads::grouped ? "grouped" : "tiled", s.decay,
                       s.gate);
}

/// A token fed in a step: what it is, and its parent among the rows fed for the same sequence (-1: the last committed).
struct DeltaToken {
    uint64_t id;
    int32_t parent;
};

struct DeltaSequence {
    int32_t slot = 0;
    int32_t committed = 0;
};

using DeltaRowsOut = std::vector<std::vector<float>>;

class DeltaWorld {
  public:
    DeltaWorld(OpContext& op, const DeltaShape& shape, uint64_t seed) : op_(op), shape_(shape) {
        view.key_heads = shape.key_heads;
        view.value_heads = shape.value_heads;
        view.key_dim = shape.key_dim;
        view.value_dim = shape.value_dim;
        view.conv_width = shape.conv_width;
        view.heads = shape.heads;
        view.stash_rows = shape.stash_rows;
        view.by_chunks = shape.by_chunks;
        conv_ = unused(shape.slots * view.conv_floats() * 4);
        state_ = unused(shape.slots * view.state_bytes());
        stash_ = unused(shape.stash_rows * view.stash_floats() * 4);
        view.conv = reinterpret_cast<float*>(conv_.data());
        view.state = state_.data();
        view.stash = reinterpret_cast<float*>(stash_.data());
        host_conv_ = normals(static_cast<size_t>(view.conv_floats()), seed, 0.7f);
        host_decay_ = normals(static_cast<size_t>(shape.value_heads), seed + 1);
        for (float& x : host_decay_) x = -shape.decay * std::exp(x);
        host_bias_ = normals(static_cast<size_t>(shape.value_heads), seed + 2);
        host_norm_ = normals(static_cast<size_t>(shape.value_dim), seed + 3);
        conv_weights_ = op.floats(host_conv_);
        decay_ = op.floats(host_decay_);
        bias_ = op.floats(host_bias_);
        norm_ = op.floats(host_norm_);
        for (int32_t i = 0; i < shape.slots; ++i) free_.push_back(i);
        std::mt19937_64 rng(seed);
        std::shuffle(free_.begin(), free_.end(), rng);
    }

    DeltaSequence sequence() { return {take(), 0}; }
    /// Another sequence in the same state.
    DeltaSequence copy(const DeltaSequence& from) {
        DeltaSequence to{take(), from.committed};
        const int64_t conv = view.conv_floats() * 4, state = view.state_bytes();
        copy_bytes(op_.ctx.gpu, conv_.data() + to.slot * conv, conv_.data() + from.slot * conv, conv);
        copy_bytes(op_.ctx.gpu, state_.data() + to.slot * state, state_.data() + from.slot * state, state);
        return to;
    }
    void drop(const DeltaSequence& s) { free_.push_back(s.slot); }

    /// Feeds tokens to several sequences in one step and gives back the outputs, one vector for each row in order.
    DeltaRowsOut step(const std::vector<DeltaSequence*>& sequences, const std::vector<std::vector<DeltaToken>>& fed,
                      ops::DeltaMode mode, const std::vector<int32_t>& held = {}) {
        build(sequences, fed);
        op_.poison();
        std::vector<uint64_t> ids;
        for (const std::vector<DeltaToken>& tokens : fed)
            for (const DeltaToken& token : tokens) ids.push_back(token.id);
        const ops::GatedDeltaInput in = input(ids);
        out = ops::gated_delta(op_.ctx, in, view, op_.batch(batch), mode, op_.ints(held));
        if (mode == ops::DeltaMode::update)
            for (size_t s = 0; s < fed.size(); ++s) sequences[s]->committed += static_cast<int32_t>(fed[s].size());
        const std::vector<float> all = values_of(out);
        DeltaRowsOut rows;
        for (auto at = all.begin(); at != all.end(); at += out.row_elements())
            rows.emplace_back(at, at + out.row_elements());
        return rows;
    }
    /// Feeds a chain in steps of `chunk` tokens.
    DeltaRowsOut feed(DeltaSequence& s, const std::vector<uint64_t>& ids, size_t chunk) {
        DeltaRowsOut rows;
        for (size_t begin = 0, count; begin < ids.size(); begin += count) {
            std::vector<DeltaToken> fed;
            count = step_of(ids.size(), begin, chunk);
            for (size_t i = begin; i < begin + count; ++i) fed.push_back({ids[i], static_cast<int32_t>(i - begin) - 1});
            for (std::vector<float>& row : step({&s}, {fed}, ops::DeltaMode::update)) rows.push_back(std::move(row));
        }
        return rows;
    }
    /// Keeps the paths (rows of the last step) of the sequences of the last step.
    void commit(const std::vector<DeltaSequence*>& sequences, const std::vector<std::vector<int32_t>>& kept) {
        std::vector<int32_t> slots, committed, count, rows;
        size_t most = 1;
        for (const std::vector<int32_t>& path : kept) most = std::max(most, path.size());
        for (size_t s = 0; s < kept.size(); ++s) {
            slots.push_back(sequences[s]->slot);
            committed.push_back(sequences[s]->committed);
            count.push_back(static_cast<int32_t>(kept[s].size()));
            rows.insert(rows.end(), kept[s].begin(), kept[s].end());
            rows.resize((s + 1) * most, -1);
            sequences[s]->committed += count.back();
        }
        ops::gated_delta_commit(
            op_.ctx, {&view, 1},
            {op_.ints(slots), op_.ints(committed), op_.ints(count), op_.ints(rows), static_cast<int64_t>(most)});
    }

    /// The slot: convolution inputs, then state. Of a sequence with committed tokens.
    std::vector<float> slot_of(const DeltaSequence& s) {
        std::vector<float> all(static_cast<size_t>(view.conv_floats() + view.state_elements()));
        fetch(all.data(), conv_.data() + s.slot * view.conv_floats() * 4, view.conv_floats() * 4);
        fetch(all.data() + view.conv_floats(), state_.data() + s.slot * view.state_bytes(), view.state_bytes());
        return all;
    }
    std::vector<float> stash() {
        std::vector<float> all(static_cast<size_t>(shape_.stash_rows * view.stash_floats()));
        fetch(all.data(), stash_.data(), stash_.bytes());
        return all;
    }

    /// The projections of tokens, in memory of the device; their host copies are in `columns`.
    ops::GatedDeltaInput input(const std::vector<uint64_t>& ids) {
        columns = make_columns(ids);
        const auto n = static_cast<int64_t>(ids.size()), heads = shape_.value_heads;
        return {op_.tensor(columns.qkv, {n, view.channels()}),
                op_.tensor(columns.z, {n, heads * shape_.value_dim}),
                op_.tensor(columns.a, {n, heads}),
                op_.tensor(columns.b, {n, heads}),
                conv_weights_,
                decay_,
                bias_,
                {norm_, 1e-6f}};
    }
    struct Columns {
        std::vector<float> qkv, z, a, b;
    };
    Columns columns;
    /// The same in host memory, for a reference. `from`: must stay.
    ops::GatedDeltaInput host_input(Columns& from, int64_t n) const {
        const int64_t heads = shape_.value_heads;
        return {Tensor(from.qkv.data(), DType::f32, {n, view.channels()}),
                Tensor(from.z.data(), DType::f32, {n, heads * shape_.value_dim}),
                Tensor(from.a.data(), DType::f32, {n, heads}),
                Tensor(from.b.data(), DType::f32, {n, heads}),
                host_conv_,
                host_decay_,
                host_bias_,
                {host_norm_, 1e-6f}};
    }
    Columns make_columns(const std::vector<uint64_t>& ids) const {
        Columns c;
        const auto append = [](std::vector<float>& to, int64_t count, uint64_t seed, float scale) {
            const std::vector<float> x = normals(static_cast<size_t>(count), seed, scale);
            to.insert(to.end(), x.begin(), x.end());
        };
        for (const uint64_t id : ids) {
            append(c.qkv, view.channels(), id * 4, 1.0f);
            append(c.z, shape_.value_heads * shape_.value_dim, id * 4 + 1, 1.0f);
            append(c.a, shape_.value_heads, id * 4 + 2, 2.0f);
            append(c.b, shape_.value_heads, id * 4 + 3, shape_.gate);
        }
        return c;
    }

    DeltaView view;
    Batch batch;  // of the last step, until the next
    Tensor out;   // the same

  private:
    DeviceMemory unused(int64_t bytes) {
        DeviceMemory memory(op_.ctx.gpu, bytes, "state");
        if (op_.ctx.gpu != nullptr) op_.ctx.gpu->fill(memory.data(), 0xFF, bytes);
        else std::memset(memory.data(), 0xFF, static_cast<size_t>(bytes));
        return memory;
    }
    void fetch(float* to, const std::byte* from, int64_t bytes) {
        if (op_.ctx.gpu != nullptr) op_.ctx.gpu->to_host(to, from, bytes);
        else std::memcpy(to, from, static_cast<size_t>(bytes));
    }
    int32_t take() {
        EXPECT_FALSE(free_.empty());
        const int32_t slot = free_.back();
        free_.pop_back();
        return slot;
    }

    void build(const std::vector<DeltaSequence*>& sequences, const std::vector<std::vector<DeltaToken>>& fed) {
        for (auto* array : {&tokens_, &positions_, &row_sequence_, &parent_, &row_begin_, &committed_, &slots_})
            array->clear();
        bool tree = false;
        for (size_t s = 0; s < sequences.size(); ++s) {
            const auto first = static_cast<int32_t>(tokens_.size());
            row_begin_.push_back(first);
            for (size_t i = 0; i < fed[s].size(); ++i) {
                const int32_t parent = fed[s][i].parent;
                tree = tree || parent != static_cast<int32_t>(i) - 1;
                tokens_.push_back(static_cast<int32_t>(fed[s][i].id));
                positions_.push_back(parent < 0 ? sequences[s]->committed
                                                : positions_[static_cast<size_t>(first + parent)] + 1);
                row_sequence_.push_back(static_cast<int32_t>(s));
                parent_.push_back(parent < 0 ? -1 : first + parent);
            }
            committed_.push_back(sequences[s]->committed);
            slots_.push_back(sequences[s]->slot);
        }
        row_begin_.push_back(static_cast<int32_t>(tokens_.size()));
        batch = {tokens_, positions_, row_sequence_, {}, row_begin_, committed_, {}, 0, slots_, {}};
        if (tree) batch.parent = parent_;
    }

    OpContext& op_;
    DeltaShape shape_;
    DeviceMemory conv_, state_, stash_;
    std::vector<float> host_conv_, host_decay_, host_bias_, host_norm_;
    std::span<const float> conv_weights_, decay_, bias_, norm_;
    std::vector<int32_t> free_;
    std::vector<int32_t> tokens_, positions_, row_sequence_, parent_, row_begin_, committed_, slots_;
};

inline std::vector<uint64_t> delta_ids(size_t n, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::vector<uint64_t> ids(n);
    for (uint64_t& id : ids) id = rng() % 1000003;
    return ids;
}

inline std::vector<DeltaToken> delta_chain(const std::vector<uint64_t>& ids) {
    std::vector<DeltaToken> chain;
    for (size_t i = 0; i < ids.size(); ++i) chain.push_back({ids[i], static_cast<int32_t>(i) - 1});
    return chain;
}

/// A random tree whose nodes hang near the end of the list with probability `deep`, anywhere else.
inline std::vector<DeltaToken> delta_tree(size_t n, double deep, std::mt19937_64& rng) {
    std::vector<DeltaToken> tree;
    for (size_t i = 0; i < n; ++i) {
        const auto last = static_cast<int32_t>(i) - 1;
        const bool next = std::uniform_real_distribution<double>(0, 1)(rng) < deep;
        tree.push_back({rng() % 1000003, next ? last : static_cast<int32_t>(rng() % (i + 1)) - 1});
    }
    return tree;
}

/// The nodes from the root's child to `node`.
inline std::vector<int32_t> delta_path(const std::vector<DeltaToken>& tree, int32_t node) {
    std::vector<int32_t> path;
    for (; node >= 0; node = tree[static_cast<size_t>(node)].parent) path.insert(path.begin(), node);
    return path;
}

}  // namespace riptide
