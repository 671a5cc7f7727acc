#include "apps/chat/tool_runner.h"

#include <fstream>
#include <iterator>

#include "apps/support/child_process.h"
#include "apps/support/temporary_folder.h"
#include "base/error.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace {

constexpr std::size_t kMostToolOutput = std::size_t{1} << 20;

/// The beginning of a file, as UTF-8.
std::string beginning_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string raw(kMostToolOutput, '\0'), out;
    file.read(raw.data(), static_cast<std::streamsize>(raw.size()));
    raw.resize(static_cast<std::size_t>(file.gcount()));
    Utf8Stream utf8;
    utf8.push(raw, out);
    utf8.finish(out);
    if (raw.size() == kMostToolOutput) out += "\n[the rest is left out]";
    return out;
}

}  // namespace

std::string run_tool(const std::string& program, const std::string& name, const std::string& arguments) {
    const TemporaryFolder folder;
    const std::string input = folder.path() + "/arguments.json", output = folder.path() + "/output";
    std::ofstream(input) << arguments;
    ChildProcess child({.command = {program, name}, .environment = {}, .log = output, .input = input});
    const int status = child.wait();
    RT_CHECK(status != 127, ErrorKind::unavailable, "{}: cannot be run", program);
    std::string result = beginning_of(output);
    if (status != 0) result += fmt::format("\n[ended with status {}]", status);
    return result;
}

}  // namespace riptide::apps
