#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace riptide {
namespace {

// FNV-1a, 64 bits, over length-prefixed fields.
struct Hash {
    uint64_t value = 0xCBF29CE484222325u;
    void byte(unsigned char b) { value = (value ^ b) * 0x100000001B3u; }
    void number(uint64_t n) {
        for (int i = 0; i < 8; ++i) byte(static_cast<unsigned char>(n >> (8 * i)));
    }
    void text(std::string_view s) {
        number(s.size());
        for (const char c : s) byte(static_cast<unsigned char>(c));
    }
};

using TextIndex = std::unordered_map<std::string_view, int32_t>;

}  // namespace

MergeSpec parse_merge(std::string_view text, std::size_t number, std::string_view what) {
    const std::size_t space = text.find(' ');
    RT_CHECK(space != std::string_view::npos && space > 0 && space + 1 < text.size() &&
                 text.find(' ', space + 1) == std::string_view::npos,
             "{}: merge {} is {:?}, expected two tokens with one space between", what, number, text.substr(0, 200));
    return {text.substr(0, space), text.substr(space + 1)};
}

struct Tokenizer::Impl {
    std::string path;
    std::vector<std::string> pieces;
    std::vector<TokenKind> kinds;
    TextIndex normal_ids, added_ids;  // raw bytes -> id
    /// Added tokens. Those that spell nothing but white space (runs of spaces, in GPT-NeoX's family) are no markup that
    /// a client could forge: they are found wherever they stand, as by everybody else.
    struct Added {
        AddedTokens all, blank;
    };
    Added raw_added;         // matched in the text as given
    Added normalized_added;  // matched in what is left, after the normaliser
    PreTokenizer pre;
    std::unique_ptr<Bpe> bpe;
    bool nfc = false, ignore_merges = false;
    int32_t bos = -1, eos = -1, eot = -1, unk = -1, pad = -1, mask = -1;
    std::vector<int32_t> prefix, suffix;
    uint64_t fingerprint = 0;

    explicit Impl(TokenizerSpec& spec);
    void load_tokens(const TokenizerSpec& spec, TextIndex& by_spelling);
    void load_merges(const TokenizerSpec& spec, const TextIndex& by_spelling, Hash& hash);
    void check_id(int32_t id, std::string_view name) const;
    void hash_tokens(Hash& hash) const;

    struct Work {
        Bpe::Scratch scratch;
        std::vector<TextSpan> pieces;
        std::vector<AddedTokens::Found> found;
        WorkBudget* budget = nullptr;
    };
    void encode_plain(std::string_view text, Work& work, std::vector<int32_t>& ids) const;
    void encode_section(std::string_view text, std::span<const TextSpan> trusted, Work& work,
                        std::vector<int32_t>& ids) const;
    std::vector<AddedTokens::Found> find_added(const Added& tokens, std::string_view text,
                                               std::span<const TextSpan> trusted) const;
};

Tokenizer::Impl::Impl(TokenizerSpec& spec) : path(spec.path), pre(std::move(spec.pre)) {
    TextIndex by_spelling;
    load_tokens(spec, by_spelling);
    const auto take = [&](int32_t id, std::string_view name) {
        if (id != -1) check_id(id, name);
        return id;
    };
    bos = take(spec.bos, "BOS");
    eos = take(spec.eos, "EOS");
    eot = take(spec.eot, "EOT");
    unk = take(spec.unk, "unknown-token");
    pad = take(spec.pad, "padding");
    mask = take(spec.mask, "mask");
    for (const int32_t id : spec.prefix) prefix.push_back((check_id(id, "prefix"), id));
    for (const int32_t id : spec.suffix) suffix.push_back((check_id(id, "suffix"), id));
    // Files name one EOS only, or that of plain text, but every answer ends with the token that ends a turn.
    for (const char* end : {"</assistant>", "<|im_end|>"})
        if (eot < 0 && added_ids.contains(end)) eot = added_ids.at(end);
    nfc = spec.nfc;
    ignore_merges = spec.ignore_merges;
    Hash hash;
    hash.text("riptide tokenizer 1");
    hash_tokens(hash);
    load_merges(spec, by_spelling, hash);
    hash.text(pre.description());
    hash.number(ignore_merges ? 1 : 0);
    fingerprint = hash.value;
}

void Tokenizer::Impl::check_id(int32_t id, std::string_view name) const {
    RT_CHECK(id >= 0 && static_cast<std::size_t>(id) < pieces.size(),
             "{}: {} id {} is outside the vocabulary of {} tokens", path, name, id, pieces.size());
}

void Tokenizer::Impl::load_tokens(const TokenizerSpec& spec, TextIndex& by_spelling) {
    const std::size_t n = spec.tokens.size();
    RT_CHECK(n > 0 && n <= static_cast<std::size_t>(kMaxTokens), "{}: vocabulary of {} tokens, expected 1 to {}", path,
             n, kMaxTokens);
    pieces.resize(n);
    kinds.resize(n);
    by_spelling.reserve(n);
    normal_ids.reserve(n);
    std::vector<AddedToken> raw, normalized;
    for (std::size_t i = 0; i < n; ++i) {
        const TokenSpec& token = spec.tokens[i];
        const auto id = static_cast<int32_t>(i);
        RT_CHECK(token.defined, "{}: no token has id {} (of {})", path, id, n);
        const bool is_added = token.kind == TokenKind::special || token.kind == TokenKind::added;
        const int64_t limit = is_added ? kMaxAddedTokenBytes : kMaxTokenBytes;
        RT_CHECK(static_cast<int64_t>(token.text.size()) <= limit, "{}: token {} has {} bytes, at most {} are allowed",
                 path, id, token.text.size(), limit);
        kinds[i] = token.kind;
        if (is_added || !from_byte_alphabet(token.text, pieces[i])) pieces[i] = token.text;
        if (token.kind == TokenKind::unused) continue;
        RT_CHECK(!token.text.empty(), "{}: token {} is empty", path, id);
        const auto [at, fresh] = by_spelling.emplace(token.text, id);
        RT_CHECK(fresh, "{}: tokens {} and {} are both {:?}", path, at->second, id, token.text.substr(0, 200));
        (is_added ? added_ids : normal_ids).emplace(pieces[i], id);
        if (is_added) {
            (token.normalized ? normalized : raw).push_back({pieces[i], id, token.lstrip, token.rstrip});
        }
    }
    const auto with_blank = [&](std::vector<AddedToken> all) {
        std::vector<AddedToken> blank;
        std::copy_if(all.begin(), all.end(), std::back_inserter(blank), [&](const AddedToken& token) {
            return kinds[static_cast<std::size_t>(token.id)] == TokenKind::added &&
                   token.text.find_first_not_of(" \t\r\n") == std::string::npos;
        });
        return Added{AddedTokens(std::move(all)), AddedTokens(std::move(blank))};
    };
    raw_added = with_blank(std::move(raw));
    normalized_added = with_blank(std::move(normalized));
}

void Tokenizer::Impl::load_merges(const TokenizerSpec& spec, const TextIndex& by_spelling, Hash& hash) {
    std::array<int32_t, 256> byte_ids;
    for (int b = 0; b < 256; ++b) {
        const char byte = static_cast<char>(static_cast<unsigned char>(b));
        const auto found = normal_ids.find(std::string_view(&byte, 1));
        byte_ids[static_cast<std::size_t>(b)] = found == normal_ids.end() ? unk : found->second;
    }
    RT_CHECK(spec.merges.size() <= static_cast<std::size_t>(kMaxTokens), "{}: {} merges, at most {} are allowed", path,
             spec.merges.size(), kMaxTokens);
    bpe = std::make_unique<Bpe>(byte_ids, spec.merges.size());
    std::string joined;
    for (std::size_t i = 0; i < spec.merges.size(); ++i) {
        const MergeSpec& merge = spec.merges[i];
        const auto id_of = [&](std::string_view token) {
            const auto found = by_spelling.find(token);
            RT_CHECK(found != by_spelling.end(),
                     "{}: merge {} ({:?} + {:?}) needs the token {:?}, which is not in the vocabulary", path, i,
                     merge.left.substr(0, 200), merge.right.substr(0, 200), token.substr(0, 400));
            return found->second;
        };
        joined.assign(merge.left).append(merge.right);
        const int32_t left = id_of(merge.left);
        const int32_t right = id_of(merge.right);
        RT_CHECK(bpe->add(left, right, id_of(joined)), "{}: merge {} ({:?} + {:?}) stands in the list twice", path, i,
                 merge.left.substr(0, 200), merge.right.substr(0, 200));
        hash.number(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
    }
}

void Tokenizer::Impl::hash_tokens(Hash& hash) const {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (kinds[i] == TokenKind::unused) continue;
        hash.number(i << 1 | (kinds[i] == TokenKind::normal ? 0 : 1));
        hash.text(pieces[i]);
    }
}

// Pre-tokenises and merges text that holds no added tokens.
void Tokenizer::Impl::encode_plain(std::string_view text, Work& work, std::vector<int32_t>& ids) const {
    work.pieces.clear();
    pre.split(text, work.pieces, work.budget);
    for (const TextSpan& span : work.pieces) {
        const std::string_view piece =
            text.substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
        if (ignore_merges) {
            if (const auto whole = normal_ids.find(piece); whole != normal_ids.end()) {
                ids.push_back(whole->second);
                continue;
            }
        }
        bpe->encode(piece, work.scratch, ids, work.budget);
    }
}

std::vector<AddedTokens::Found> Tokenizer::Impl::find_added(const Added& tokens, std::string_view text,
                                                            std::span<const TextSpan> trusted) const {
    std::vector<AddedTokens::Found> found;
    if (tokens.all.empty()) return found;
    int64_t at = 0;
    for (const TextSpan& span : trusted) {
        tokens.blank.find(text, {at, span.begin}, found);
        tokens.all.find(text, span, found);
        at = span.end;
    }
    tokens.blank.find(text, {at, static_cast<int64_t>(text.size())}, found);
    return found;
}

// A stretch between raw added tokens: cut out the added tokens that are matched after the normaliser.
void Tokenizer::Impl::encode_section(std::string_view text, std::span<const TextSpan> trusted, Work& work,
                                     std::vector<int32_t>& ids) const {
    std::size_t at = 0;
    const auto plain = [&](std::size_t end) {
        if (end <= at) return;
        const std::string_view part = text.substr(at, end - at);
        nfc ? encode_plain(to_nfc(part), work, ids) : encode_plain(part, work, ids);
    };
    for (const AddedTokens::Found& found : find_added(normalized_added, text, trusted)) {
        plain(static_cast<std::size_t>(found.span.begin));
        ids.push_back(found.id);
        at = static_cast<std::size_t>(found.span.end);
    }
    plain(text.size());
}

Tokenizer::Tokenizer(TokenizerSpec&& spec) : impl_(std::make_unique<const Impl>(spec)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

// The parts of `spans` inside [begin, end), counted from begin.
std::vector<TextSpan> clip(std::span<const TextSpan> spans, int64_t begin, int64_t end) {
    std::vector<TextSpan> out;
    const auto first =
        std::partition_point(spans.begin(), spans.end(), [&](const TextSpan& s) { return s.end <= begin; });
    for (auto s = first; s != spans.end() && s->begin < end; ++s) {
        out.push_back({std::max(s->begin, begin) - begin, std::min(s->end, end) - begin});
    }
    return out;
}

void check_spans(std::span<const TextSpan> spans, int64_t size) {
    int64_t last = 0;
    for (const TextSpan& span : spans) {
        RT_CHECK(span.begin >= last && span.begin <= span.end && span.end <= size,
                 "trusted span [{}, {}) is out of order or outside the text of {} bytes", span.begin, span.end, size);
        last = span.end;
    }
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
    const TextSpan all{0, static_cast<int64_t>(text.size())};
    const std::span<const TextSpan> trusted = options.parse_special ? std::span(&all, 1) : options.trusted;
    check_spans(trusted, all.end);
    std::vector<int32_t> ids;
    if (options.add_special) ids = impl_->prefix;
    Impl::Work work;
    work.budget = options.work;
    int64_t at = 0;
    const auto section = [&](int64_t end) {
        if (end <= at) return;
        const auto part = text.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(end - at));
        impl_->encode_section(part, clip(trusted, at, end), work, ids);
    };
    for (const AddedTokens::Found& found : impl_->find_added(impl_->raw_added, text, trusted)) {
        section(found.span.begin);
        ids.push_back(found.id);
        at = found.span.end;
    }
    section(all.end);
    if (options.add_special) ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
    return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
    std::string out;
    for (const int32_t id : ids) {
        if (!(skip_special && is_special(id))) out.append(piece(id));
    }
    return out;
}

std::string_view Tokenizer::piece(int32_t id) const {
    impl_->check_id(id, "token");
    return impl_->pieces[static_cast<std::size_t>(id)];
}

TokenKind Tokenizer::kind(int32_t id) const {
    impl_->check_id(id, "token");
    return impl_->kinds[static_cast<std::size_t>(id)];
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->pieces.size()); }
int32_t Tokenizer::bos() const { return impl_->bos; }
int32_t Tokenizer::eos() const { return impl_->eos; }
int32_t Tokenizer::eot() const { return impl_->eot; }
int32_t Tokenizer::unk() const { return impl_->unk; }
int32_t Tokenizer::pad() const { return impl_->pad; }
int32_t Tokenizer::mask() const { return impl_->mask; }
bool Tokenizer::adds_bos() const { return !impl_->prefix.empty() && impl_->prefix.front() == impl_->bos; }
uint64_t Tokenizer::fingerprint() const { return impl_->fingerprint; }
const PreTokenizer& Tokenizer::pre_tokenizer() const { return impl_->pre; }

std::vector<int32_t> Tokenizer::stop_ids(std::span<const int32_t> more) const {
    std::vector<int32_t> out;
    for (const int32_t id : {impl_->eos, impl_->eot}) {
        if (id >= 0) out.push_back(id);
    }
    for (const int32_t id : more) {
        impl_->check_id(id, "stop");
        out.push_back(id);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

int32_t Tokenizer::id_of(std::string_view bytes) const {
    for (const TextIndex* index : {&impl_->added_ids, &impl_->normal_ids}) {
        if (const auto found = index->find(bytes); found != index->end()) return found->second;
    }
    return -1;
}

}  // namespace riptide
