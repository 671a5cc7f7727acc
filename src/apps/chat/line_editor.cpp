#include "apps/chat/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace {

constexpr int kHistoryLines = 1000;
constexpr int kCtrlC = 3, kCtrlZ = 26;
constexpr const char* kPasteOn = "\033[?2004h";  // the terminal puts marks round what is pasted
constexpr const char* kPasteOff = "\033[?2004l";
constexpr std::string_view kPasteEnd = "\033[201~";

void send_mode(const char* mode) {
    std::fputs(mode, stdout);
    std::fflush(stdout);
}

/// Ctrl-Z: the terminal is the shell's meanwhile.
void stop_for_a_while(::EditLine* edit) {
    send_mode(kPasteOff);
    el_set(edit, EL_PREP_TERM, 0);
    std::raise(SIGTSTP);
    el_set(edit, EL_PREP_TERM, 1);
    send_mode(kPasteOn);
    el_set(edit, EL_REFRESH);
}

/// What a terminal sends of a paste: line ends as CR, and no control characters that would be keys.
std::string cleaned_paste(const std::string& raw) {
    std::string out, lines;
    Utf8Stream utf8;
    utf8.push(raw, out);
    utf8.finish(out);
    for (std::size_t i = 0; i < out.size(); ++i) {
        const char c = out[i];
        if (c == '\r' && i + 1 < out.size() && out[i + 1] == '\n') continue;
        if (c == '\r' || c == '\n') lines.push_back('\n');
        else if (c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)) lines.push_back(c);
    }
    while (lines.ends_with('\n')) lines.pop_back();
    return lines;
}

void bind_keys(::EditLine* edit) {
    constexpr std::pair<const char*, const char*> kKeys[] = {
        {"\\e[200~", "riptide-paste"}, {"^R", "em-inc-search-prev"}, {"\\e[3~", "ed-delete-next-char"},
        {"\\e[H", "ed-move-to-beg"},   {"\\e[F", "ed-move-to-end"},  {"\\e[1~", "ed-move-to-beg"},
        {"\\e[4~", "ed-move-to-end"},  {"\\e[1;5C", "em-next-word"}, {"\\e[1;5D", "ed-prev-word"},
        {"\\e[A", "ed-prev-history"},  {"\\e[B", "ed-next-history"}, {"\\eOA", "ed-prev-history"},
        {"\\eOB", "ed-next-history"},
    };
    for (const auto& [key, function] : kKeys) el_set(edit, EL_BIND, key, function, nullptr);
}

/// Made before libedit writes to it, so that nobody else can ever read it.
void make_private(const std::string& path) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code ec;
    if (!std::filesystem::exists(folder, ec)) {
        std::filesystem::create_directories(folder, ec);
        std::filesystem::permissions(folder, std::filesystem::perms::owner_all, ec);
    }
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) fail(ErrorKind::io, "{}: {}", path, std::strerror(errno));
    const int failed = ::fchmod(file, 0600);
    ::close(file);
    if (failed != 0) fail(ErrorKind::io, "{}: cannot be made private", path);
}

}  // namespace

struct LineEditor::Impl {
    explicit Impl(InputBytes& input) : bytes(input) {}
    ~Impl() {
        if (edit != nullptr) el_end(edit);
        if (lines != nullptr) history_end(lines);
    }
    // libedit calls these.
    static Impl& of(::EditLine* edit);
    static char* prompt_of(::EditLine* edit) { return of(edit).prompt.data(); }
    static int next_character(::EditLine* edit, wchar_t* out);
    static unsigned char insert_paste(::EditLine* edit, int);

    InputBytes& bytes;
    std::string history_file, prompt;
    ::EditLine* edit = nullptr;
    ::History* lines = nullptr;
    bool interrupted = false;  // this read() has been
};

LineEditor::Impl& LineEditor::Impl::of(::EditLine* edit) {
    void* data = nullptr;
    el_get(edit, EL_CLIENTDATA, &data);
    return *static_cast<Impl*>(data);
}

/// One character for libedit: 1; 0: the end; -1: interrupted.
int LineEditor::Impl::next_character(::EditLine* edit, wchar_t* out) {
    Impl& self = of(edit);
    std::string text;
    for (;;) {
        const int byte = self.interrupted ? InputBytes::kInterrupted : self.bytes.next();
        if (byte == InputBytes::kEnd) return 0;
        if (byte == InputBytes::kInterrupted || byte == kCtrlC) {
            self.interrupted = true;
            return -1;
        }
        if (byte == kCtrlZ && text.empty()) {
            stop_for_a_while(edit);
            continue;
        }
        text.push_back(static_cast<char>(byte));
        const Utf8Char c = utf8_at(text, 0);
        if (c.kind == Utf8Char::Kind::incomplete) continue;
        *out = c.kind == Utf8Char::Kind::character ? static_cast<wchar_t>(c.code_point) : L'\ufffd';
        return 1;
    }
}

/// Bound to the mark that begins a paste.
unsigned char LineEditor::Impl::insert_paste(::EditLine* edit, int) {
    Impl& self = of(edit);
    std::string raw;
    while (!raw.ends_with(kPasteEnd)) {
        const int byte = self.bytes.next();
        if (byte < 0) return CC_ERROR;
        raw.push_back(static_cast<char>(byte));
    }
    raw.resize(raw.size() - kPasteEnd.size());
    const std::string text = cleaned_paste(raw);
    return text.empty() || el_insertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

bool LineEditor::available() { return true; }

LineEditor::LineEditor(InputBytes& bytes, const std::string& history_file) : impl_(std::make_unique<Impl>(bytes)) {
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX < 4) std::setlocale(LC_CTYPE, "C.UTF-8");
    Impl& self = *impl_;
    self.history_file = history_file;
    self.lines = history_init();
    self.edit = el_init("riptide", stdin, stdout, stderr);
    RT_CHECK(self.edit != nullptr && self.lines != nullptr, ErrorKind::system, "libedit cannot be started");
    HistEvent event{};
    history(self.lines, &event, H_SETSIZE, kHistoryLines);
    history(self.lines, &event, H_SETUNIQUE, 1);
    if (!history_file.empty()) history(self.lines, &event, H_LOAD, history_file.c_str());
    el_set(self.edit, EL_CLIENTDATA, &self);
    el_set(self.edit, EL_PROMPT, &Impl::prompt_of);
    el_set(self.edit, EL_EDITOR, "emacs");
    el_set(self.edit, EL_SIGNAL, 0);
    el_set(self.edit, EL_HIST, &history, self.lines);
    el_set(self.edit, EL_GETCFN, &Impl::next_character);
    el_set(self.edit, EL_ADDFN, "riptide-paste", "Insert what is pasted", &Impl::insert_paste);
    el_set(self.edit, EL_SETTY, "-d", "intr=", nullptr);  // Ctrl-C and Ctrl-Z are bytes: see next_character()
    el_set(self.edit, EL_SETTY, "-d", "susp=", nullptr);
    bind_keys(self.edit);
}

LineEditor::~LineEditor() = default;

TypedLine LineEditor::read(const std::string& prompt) {
    impl_->prompt = prompt;
    impl_->interrupted = false;
    el_resize(impl_->edit);
    el_set(impl_->edit, EL_PREP_TERM, 1);  // libedit would do so behind its prompt, and lose a Ctrl-D that is faster
    send_mode(kPasteOn);
    int length = 0;
    const char* line = el_gets(impl_->edit, &length);
    send_mode(line == nullptr ? "\033[?2004l\n" : kPasteOff);
    if (impl_->interrupted) {
        el_reset(impl_->edit);
        return {TypedLine::Kind::interrupted, ""};
    }
    if (line == nullptr || length <= 0) return {TypedLine::Kind::end, ""};
    std::string text = line;
    if (text.ends_with('\n')) text.pop_back();
    return {TypedLine::Kind::text, text};
}

void LineEditor::remember(const std::string& text) {
    HistEvent event{};
    history(impl_->lines, &event, H_ENTER, text.c_str());
    if (impl_->history_file.empty()) return;
    make_private(impl_->history_file);
    RT_CHECK(history(impl_->lines, &event, H_SAVE, impl_->history_file.c_str()) >= 0, ErrorKind::io,
             "{}: cannot be written", impl_->history_file);
}

}  // namespace riptide::apps
