#include "apps/niah/niah_text.h"

#include <fmt/core.h>

namespace riptide::apps {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kNouns[] = {
    "account"sv, "basket"sv,  "bridge"sv,  "buffer"sv, "cabinet"sv, "candle"sv,  "channel"sv, "column"sv,  "counter"sv,
    "course"sv,  "device"sv,  "engine"sv,  "fabric"sv, "filter"sv,  "garden"sv,  "group"sv,   "harbor"sv,  "index"sv,
    "invoice"sv, "journal"sv, "kitchen"sv, "ladder"sv, "letter"sv,  "library"sv, "machine"sv, "market"sv,  "message"sv,
    "mirror"sv,  "module"sv,  "needle"sv,  "notice"sv, "order"sv,   "packet"sv,  "parcel"sv,  "pattern"sv, "pipeline"sv,
    "planet"sv,  "profile"sv, "queue"sv,   "record"sv, "report"sv,  "river"sv,   "sample"sv,  "session"sv, "signal"sv,
    "station"sv, "stream"sv,  "table"sv,   "thread"sv, "ticket"sv,  "tower"sv,   "vessel"sv,  "volume"sv,  "window"sv};
constexpr std::string_view kAdjectives[] = {"quiet"sv,  "broken"sv, "late"sv,   "early"sv,  "empty"sv,
                                            "heavy"sv,  "bright"sv, "narrow"sv, "public"sv, "remote"sv,
                                            "round"sv,  "second"sv, "shared"sv, "small"sv,  "stable"sv,
                                            "former"sv, "warm"sv,   "wooden"sv, "yellow"sv, "open"sv};
constexpr std::string_view kVerbs[] = {"carry"sv,   "check"sv,  "close"sv,  "collect"sv, "count"sv,
                                       "deliver"sv, "follow"sv, "gather"sv, "load"sv,    "measure"sv,
                                       "move"sv,    "open"sv,   "paint"sv,  "repair"sv,  "return"sv,
                                       "send"sv,    "sort"sv,   "split"sv,  "update"sv,  "watch"sv};
constexpr std::string_view kPeople[] = {"Agnes"sv, "Boris"sv, "Celia"sv, "Dario"sv, "Edith"sv, "Fabian"sv, "Greta"sv,
                                        "Hugo"sv,  "Ines"sv,  "Jonas"sv, "Karin"sv, "Leon"sv,  "Mira"sv,   "Nils"sv};
constexpr std::string_view kLevels[] = {"INFO"sv, "INFO"sv, "DEBUG"sv, "WARN"sv, "ERROR"sv};

std::string prose(Draw& d) {
    const std::string_view a = d.pick(kNouns), b = d.pick(kNouns), c = d.pick(kNouns), kind = d.pick(kAdjectives),
                           other = d.pick(kAdjectives), verb = d.pick(kVerbs), who = d.pick(kPeople);
    switch (d.below(7)) {
        case 0:
            return fmt::format("{} had to {} the {} {} before anybody could use the {}.", who, verb, kind, a, b);
        case 1:
            return fmt::format("Behind the {} stood a {} {}, and beside it a {} that was {}.", a, kind, b, c, other);
        case 2:
            return fmt::format("When the {} was {}, {} went back to {} the {}.", a, kind, who, verb, b);
        case 3:
            return fmt::format("Nobody asked why the {} of the {} was so {}; {} knew, and said nothing.", a, b, kind,
                               who);
        case 4:
            return fmt::format("A {} is not a {}. To {} one, take a {} {} and wait.", a, b, verb, other, c);
        case 5:
            return fmt::format("It took {} days to {} every {} in the {} {}.", 2 + d.below(40), verb, a, kind, b);
        default:
            return fmt::format("\"The {} is {},\" said {}, \"but the {} is still {}.\"", a, kind, who, b, other);
    }
}

std::string code(Draw& d) {
    const std::string_view a = d.pick(kNouns), b = d.pick(kNouns), c = d.pick(kNouns), verb = d.pick(kVerbs),
                           kind = d.pick(kAdjectives);
    const int64_t n = d.below(200);
    switch (d.below(12)) {
        case 0:
            return fmt::format("def {}_{}({}, {}=None):", verb, a, b, c);
        case 1:
            return fmt::format("    \"\"\"{} the {} {}.\"\"\"", verb, kind, a);
        case 2:
            return fmt::format("    {} = self.{}_{}({}, {})", a, verb, b, c, n);
        case 3:
            return fmt::format("    if {} is None or len({}) > {}:", a, b, n);
        case 4:
            return fmt::format("        raise ValueError(f\"{} {{{}}} is not {}\")", a, b, kind);
        case 5:
            return fmt::format("    for {} in sorted({}.{}_{}):", a, b, kind, c);
        case 6:
            return fmt::format("        {}.append(({}, {}[{}]))", a, b, c, n);
        case 7:
            return fmt::format("    return {{\"{}\": {}, \"{}\": {}}}", a, b, kind, c);
        case 8:
            return fmt::format("class {}{}:", static_cast<char>(a[0] - 'a' + 'A'), a.substr(1));
        case 9:
            return fmt::format("    self._{}_{} = {}", kind, a, b);
        case 10:
            return fmt::format("    # {} every {} before the {} is {}", verb, a, b, kind);
        default:
            return fmt::format("from {}.{} import {}_{}", a, b, verb, c);
    }
}

std::string log(Draw& d) {
    const std::string_view a = d.pick(kNouns), b = d.pick(kNouns), verb = d.pick(kVerbs), kind = d.pick(kAdjectives);
    const int64_t second = d.below(60), minute = d.below(60), hour = d.below(24), day = d.below(28),
                  month = d.below(12);
    const std::string at = fmt::format("2031-{:02}-{:02} {:02}:{:02}:{:02}", 1 + month, 1 + day, hour, minute, second);
    const int64_t n = d.below(1000);
    const std::string_view level = d.pick(kLevels);
    switch (d.below(5)) {
        case 0:
            return fmt::format("{} {} {}.{}: took {} ms", at, level, a, verb, n);
        case 1:
            return fmt::format("{} {} cannot {} {} {}, trying again", at, level, verb, kind, a);
        case 2:
            return fmt::format("{} {} [{}] {}={} {}={}", at, level, a, b, n, kind, d.below(100));
        case 3:
            return fmt::format("{} {} GET /{}/{}/{} {}", at, level, a, b, n, d.below(10) == 0 ? 404 : 200);
        default:
            return fmt::format("{} {} {} {} of {} done", at, level, a, n, n + d.below(100));
    }
}

}  // namespace

std::string Draw::name() {
    constexpr std::string_view kStarts[] = {"b"sv,  "d"sv,  "f"sv,  "g"sv,  "h"sv,  "k"sv,  "l"sv,  "m"sv,  "n"sv,
                                            "p"sv,  "r"sv,  "s"sv,  "t"sv,  "v"sv,  "w"sv,  "z"sv,  "br"sv, "dr"sv,
                                            "gr"sv, "kl"sv, "pl"sv, "st"sv, "tr"sv, "sh"sv, "ch"sv, "th"sv};
    constexpr std::string_view kVowels[] = {"a"sv, "e"sv, "i"sv, "o"sv, "u"sv};
    constexpr std::string_view kEnds[] = {""sv, "n"sv, "r"sv, "s"sv, "l"sv, "x"sv, "m"sv};
    std::string out;
    for (int64_t left = 3 + below(2); left > 0; --left) {
        const std::string_view vowel = pick(kVowels), start = pick(kStarts);
        out += start;
        out += vowel;
    }
    out += pick(kEnds);
    return out;
}

std::string Draw::digits(int64_t count) {
    std::string out(1, static_cast<char>('1' + below(9)));
    while (std::ssize(out) < count) out += static_cast<char>('0' + below(10));
    return out;
}

std::string haystack_line(Haystack kind, Draw& draw) {
    return kind == Haystack::prose ? prose(draw) : kind == Haystack::code ? code(draw) : log(draw);
}

}  // namespace riptide::apps
