#include "apps/support/svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "apps/support/child_process.h"
#include "apps/support/environment.h"
#include "base/error.h"
#include "base/file.h"

namespace riptide::apps {

namespace {

// The series' colours are of Okabe and Ito's palette.
constexpr const char* kStyle =
    "<style>\n"
    "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#1f2328}line{stroke:#1f2328}\n"
    "text.faint{fill:#59636e}line.grid{stroke:#d8dee4}.title{font-size:15px;font-weight:600}.head{font-weight:600}\n"
    "text.on-dark{fill:#fff}text.on-light{fill:#1f2328}\n"
    ".s0{fill:#0072b2}.s1{fill:#e69f00}.s2{fill:#009e73}.s3{fill:#cc79a7}\n"
    ".l0{stroke:#0072b2}.l1{stroke:#e69f00}.l2{stroke:#009e73}.l0,.l1,.l2{fill:none;stroke-width:2}\n"
    "@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}line{stroke:#e6edf3}\n"
    "text.faint{fill:#9198a1}line.grid{stroke:#30363d}.s0{fill:#56b4e9}.l0{stroke:#56b4e9}}\n"
    "</style>\n";

std::string class_of(std::string_view kind) { return kind.empty() ? "" : fmt::format(" class=\"{}\"", kind); }

bool is_png(std::string_view file) {
    std::string ending(file.substr(file.size() - std::min<std::size_t>(4, file.size())));
    std::transform(ending.begin(), ending.end(), ending.begin(),
                   [](char c) { return 'A' <= c && c <= 'Z' ? c + 32 : c; });
    return ending == ".png";
}

constexpr const char* kConverter = "rsvg-convert";

}  // namespace

void check_plot_name(std::string_view file) {
    RT_CHECK(!is_png(file) || !find_program(kConverter).empty(), ErrorKind::usage,
             "--plot {}: {}, which makes PNGs of plots, is not on PATH (Debian: librsvg2-bin); install it, or give a "
             "name that ends in .svg",
             file, kConverter);
}

void write_plot(const std::string& file, const std::string& svg) {
    if (!is_png(file)) return write_file_atomic(file, svg);
    const std::string source = file + ".svg";
    write_file_atomic(source, svg);
    ChildProcess::Start start;
    start.command = {find_program(kConverter), "--background-color", "white", "--zoom", "2", "--output", file, source};
    const int status = ChildProcess(start).wait();
    RT_CHECK(status == 0, ErrorKind::system, "{} ended with {}; the plot is in {}", kConverter, status, source);
    std::filesystem::remove(source);
}

std::string svg_escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '<') out += "&lt;";
        else if (c == '>') out += "&gt;";
        else if (c == '&') out += "&amp;";
        else if (c == '"') out += "&quot;";
        else if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out;
}

std::string svg_begin(double width, double height, std::string_view title) {
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
               "{1:.0f}\" role=\"img\">\n",
               width, height) +
           fmt::format("<title>{}</title>\n", svg_escaped(title)) + kStyle + svg_text(12, 24, title, "start", "title");
}

std::string svg_text(double x, double y, std::string_view content, std::string_view anchor, std::string_view kind) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, class_of(kind),
                       svg_escaped(content));
}

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view kind) {
    return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"{}/>\n", x1, y1, x2, y2,
                       class_of(kind));
}

std::string svg_bar(double x, double y, double width, double height, std::string_view kind) {
    return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"{}/>\n", x, y, width, height,
                       class_of(kind));
}

}  // namespace riptide::apps
