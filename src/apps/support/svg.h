// What the programs' plots share: one look, dark where the reader's system is dark, in colours that those who see few
// of them can tell apart. Text and lines take the picture's ink unless a class says otherwise: `faint`, `grid`, and
// `s0` to `s3` for what is compared.
#pragma once

#include <string>
#include <string_view>

namespace riptide::apps {

/// Throws Error (usage) for the name of a PNG where there is no rsvg-convert, which makes them.
void check_plot_name(std::string_view file);

/// Into `file`: as it is or, for a name that ends in .png, as rsvg-convert draws it, twice as large, on white.
void write_plot(const std::string& file, const std::string& svg);

/// Text as it may stand in an XML element or attribute; control characters are left out.
std::string svg_escaped(std::string_view text);

/// A picture's start, with its title at the top left. It ends with "</svg>\n".
std::string svg_begin(double width, double height, std::string_view title);

/// `anchor`: start, middle or end. `kind`: a class, or none.
std::string svg_text(double x, double y, std::string_view content, std::string_view anchor, std::string_view kind = "");

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view kind = "");

std::string svg_bar(double x, double y, double width, double height, std::string_view kind);

}  // namespace riptide::apps
