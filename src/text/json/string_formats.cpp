// What strings of a format are, as regular expressions.
#include <map>

#include "text/json/json_schema.h"

namespace riptide {

namespace {

const std::string kByte = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))", kIpv4 = kByte + R"((\.)" + kByte + "){3}";
const std::string kEscapedByte = "%[0-9A-Fa-f]{2}";

/// Days that there are: RFC 3339, without the year 0000, which many readers refuse.
std::string date_regex() {
    const std::string leap = R"((\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00))";
    return R"((?!0000)(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|)"
           R"(02-(0[1-9]|1\d|2[0-8]))|)" +
           leap + "-02-29)";
}

/// Leap seconds as UTC only.
std::string time_regex() {
    const std::string hour = R"(([01]\d|2[0-3]))", fraction = R"((\.\d{1,18})?)";
    return "(" + hour + R"(:[0-5]\d:[0-5]\d)" + fraction + "([Zz]|[+-]" + hour + R"(:[0-5]\d)|23:59:60)" + fraction +
           "([Zz]|[+-]00:00))";
}

/// The same, also without zone: ISO 8601 as ajv-formats has it.
std::string iso_time_regex() { return R"((([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,18})?|)" + time_regex() + ")"; }

/// RFC 3339, appendix A.
std::string duration_regex() {
    const std::string n = R"(\d{1,9})";
    const std::string seconds = n + "S", minutes = n + "M(" + seconds + ")?", hours = n + "H(" + minutes + ")?";
    const std::string time = "T(" + hours + "|" + minutes + "|" + seconds + ")";
    const std::string days = n + "D", months = n + "M(" + days + ")?", years = n + "Y(" + months + ")?";
    return "P((" + years + "|" + months + "|" + days + ")(" + time + ")?|" + time + "|" + n + "W)";
}

/// A label of at most `most` characters, 6 at least. "--" as its third and fourth characters is left to A-labels, of
/// which no regular expression says which are valid.
std::string label_regex(int most) {
    const std::string letter = "[A-Za-z0-9]", any = "[A-Za-z0-9-]";
    return fmt::format("{0}({1}?{0}|{1}{1}{0}|{1}({0}{1}|-{0}){1}{{0,{2}}}{0})?", letter, any, most - 5);
}

/// At most 253 characters in all.
std::string hostname_regex() {
    const std::string label = label_regex(32), long_label = label_regex(63);
    return fmt::format(R"({0}(\.{0}){{0,6}}|{1}(\.{1}){{0,2}})", label, long_label);
}

/// `more`: what else may stand in the local part.
std::string email_regex(std::string_view more) {
    const std::string label = label_regex(32), atom = fmt::format("[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{}-]", more);
    return fmt::format(R"(({0}{{1,20}}(\.{0}{{1,20}}){{0,2}}|{0}{{21,64}})@{1}(\.{1}){{1,4}})", atom, label);
}

/// RFC 3986, IPv6address.
std::string ipv6_regex() {
    const std::string group = "[0-9A-Fa-f]{1,4}", last = "(" + group + ":" + group + "|" + kIpv4 + ")";
    std::string out = fmt::format("(({0}:){{6}}{1}|::({0}:){{5}}{1}", group, last);
    for (int behind = 4; behind >= 0; --behind)  // groups behind :: and before the last two
        out += fmt::format("|(({0}:){{0,{1}}}{0})?::({0}:){{{2}}}{3}", group, 4 - behind, behind, last);
    return out + fmt::format("|(({0}:){{0,5}}{0})?::{0}|(({0}:){{0,6}}{0})?::)", group);
}

/// RFC 3986, something behind the scheme's colon; with `more` characters besides (RFC 3987). `relative`: also without
/// scheme. `counted`: without addresses in brackets, which are most of its states.
std::string uri_regex(std::string_view more, bool relative, bool counted) {
    const auto of = [&](std::string_view also) {
        return fmt::format("([A-Za-z0-9._~!$&'()*+,;={}{}-]|{})", also, more, kEscapedByte);
    };
    const std::string segment = of(":@") + "*", segments = "(/" + segment + ")*";
    std::string host = of("") + "*";
    if (!counted)
        host = fmt::format(R"((\[({}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]|{}))", ipv6_regex(), host);
    const std::string rooted =
        fmt::format("//({}*@)?{}(:\\d{{0,5}})?{}|/({}+{})?", of(":"), host, segments, of(":@"), segments);
    const std::string tail = fmt::format(R"((\?{0}*)?(#{0}*)?)", of(":@/?"));
    const std::string absolute = fmt::format("[A-Za-z][A-Za-z0-9+.-]*:({}|{}+{})", rooted, of(":@"), segments);
    if (!relative) return absolute + tail;
    return fmt::format("({}|{}|{}+{})?{}", absolute, rooted, of("@"), segments, tail);
}

const std::string kUcsCharacters =
    R"(\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF\u{10000}-\u{1FFFD}\u{20000}-\u{2FFFD}\u{30000}-\u{3FFFD})";

/// Of the web: a name with a dot in it, and no two hyphens together, as ajv has it.
std::string url_regex() {
    const std::string label = "([A-Za-z0-9]{1,12}-){0,3}[A-Za-z0-9]{1,20}";
    const std::string one = R"(([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2}))";
    return fmt::format(R"((https?|ftp)://({}\.){{1,4}}[A-Za-z]{{2,20}}(:[1-9]\d{{1,3}})?(/{}*(#{}*)?)?)", label, one,
                       one);
}

/// RFC 6570.
std::string uri_template_regex() {
    const std::string name = "([A-Za-z0-9_]|" + kEscapedByte + ")";
    const std::string variable = fmt::format(R"({0}(\.?{0})*(:[1-9]\d{{0,3}}|\*)?)", name);
    return fmt::format(R"(([!#$&'-;=?-[\]_a-z~{0}]|{1}|\{{[+#./;?&]?{2}(,{2})*\}})*)", kUcsCharacters, kEscapedByte,
                       variable);
}

std::string base64_regex() { return "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"; }

/// OpenAPI's bytes in base64: on several lines too, however broken, and with the armour of PEM. One line is whole.
std::string byte_regex() {
    const std::string line = "([A-Za-z0-9+/=]*|-----[A-Z0-9 ]{1,60}(-----)?)";
    return fmt::format(R"(({0}\n)*{1}(\n{0})*)", line, base64_regex());
}

const std::string kPointer = "(/([^/~]|~[01])*)*";

const std::map<std::string, std::string (*)(), std::less<>>& formats() {
    static const std::map<std::string, std::string (*)(), std::less<>> all = {
        {"date", date_regex},
        {"time", time_regex},
        {"date-time", [] { return "(" + date_regex() + ")[Tt]" + time_regex(); }},
        {"iso-time", iso_time_regex},
        {"iso-date-time", [] { return "(" + date_regex() + ")[Tt ]" + iso_time_regex(); }},
        {"duration", duration_regex},
        {"hostname", hostname_regex},
        {"email", [] { return email_regex(""); }},
        {"idn-email", [] { return email_regex(R"(\x80-\u{10FFFF})"); }},
        {"ipv4", [] { return kIpv4; }},
        {"ipv6", ipv6_regex},
        {"cidrv4", [] { return kIpv4 + R"(/([12]?\d|3[0-2]))"; }},
        {"cidrv6", [] { return ipv6_regex() + R"(/([1-9]?\d|1[01]\d|12[0-8]))"; }},
        {"url", url_regex},
        {"uri-template", uri_template_regex},
        {"uuid", [] { return fmt::format("{0}{{8}}(-{0}{{4}}){{3}}-{0}{{12}}", "[0-9A-Fa-f]"); }},
        {"json-pointer", [] { return kPointer; }},
        {"json-pointer-uri-fragment",
         [] { return std::string(R"(#(/([A-Za-z0-9_.!$&'()*+,;:=@-]|%[0-9A-Fa-f]{2}|~[01])*)*)"); }},
        {"relative-json-pointer", [] { return R"((0|[1-9]\d{0,8})(#|)" + kPointer + ")"; }},
        // Some of them: characters, classes of one letter, and repetitions.
        {"regex",
         [] { return std::string(R"(\^?(([A-Za-z0-9 _,:;=!@%&~<>.-]|\\[dDwWsS\\.*+?()[\]{}|/^$])[*+?]?)*\$?)"); }},
        {"base64", base64_regex},
        {"byte", byte_regex},
        {"base64url", [] { return std::string("([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2,3})?"); }},
        {"e164", [] { return std::string(R"(\+[1-9]\d{6,14})"); }},
        {"nanoid", [] { return std::string("[A-Za-z0-9_-]{21}"); }},
        {"cuid", [] { return std::string("c[a-z0-9]{24}"); }},
        {"cuid2", [] { return std::string("[a-z][a-z0-9]{23}"); }},
        {"ulid", [] { return std::string("[0-7][0-9A-HJKMNP-TV-Z]{25}"); }},
        // Three parts in base64url, of which the first two begin as a JSON object does.
        {"jwt", [] { return std::string(R"(e[wy3][A-Za-z0-9_-]+\.e[wy3][A-Za-z0-9_-]+\.[A-Za-z0-9_-]*)"); }},
        {"emoji", [] { return std::string(R"(\p{Emoji_Presentation}+)"); }},
    };
    return all;
}

}  // namespace

std::string regex_of_format(std::string_view format, bool counted) {
    const bool is_iri = format.starts_with("iri"), relative = format.ends_with("-reference");
    if (format.starts_with("uri") || is_iri)
        if (const std::string_view rest = format.substr(3); rest.empty() || rest == "-reference")
            return uri_regex(is_iri ? kUcsCharacters : "", relative, counted);
    const auto known = formats().find(format);
    if (known == formats().end()) throw GrammarError(fmt::format("format '{}' is not supported", format.substr(0, 80)));
    return known->second();
}

}  // namespace riptide
