// A fuzz target in an optimised build, a hundred times as fast as under AddressSanitizer: its laws on random bytes and
// on mutations of its corpus, without coverage.
//   fuzz_NAME_fast SECONDS SEED CORPUS_FOLDER
// Prints the executions every minute and at the end. An input that breaks a law, crashes or takes more than 25 s is
// left in `finding-NAME-SEED` in the working folder; the exit status is then that of the signal.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kLongest = 4096;

std::string g_finding;  // a file's name
std::string g_input;    // at hand

/// Keeps the input at hand in a file that the target under libFuzzer takes, then dies of the signal.
void keep_finding(int number) {
    const int file = ::open(g_finding.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ::write(file, g_input.data(), g_input.size()) < 0) std::perror(g_finding.c_str());
    std::signal(number, SIG_DFL);
    std::raise(number);
}

class Inputs {
  public:
    Inputs(uint64_t seed, const std::string& folder) : random_(seed) {
        for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            std::ifstream file(entry.path(), std::ios::binary);
            corpus_.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
            if (corpus_.back().size() > kLongest) corpus_.back().resize(kLongest);
        }
        if (corpus_.empty())
            std::fprintf(stderr, "%s: no inputs, expected the target's corpus\n", folder.c_str()), std::exit(2);
    }
    /// Half of them random bytes, half a member of the corpus with some bytes changed, cut out, doubled or taken from
    /// another.
    std::string next() {
        if (below(2) == 0) {
            std::string made(1 + below(300), '\0');
            for (char& byte : made) byte = static_cast<char>(below(256));
            return made;
        }
        std::string made = corpus_[below(corpus_.size())];
        for (std::size_t changes = 1 + below(8); changes > 0 && !made.empty(); --changes) change(made);
        if (made.size() > kLongest) made.resize(kLongest);
        return made;
    }

  private:
    std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }
    void change(std::string& made) {
        const std::size_t at = below(made.size()), length = 1 + below(std::min<std::size_t>(made.size() - at, 16));
        switch (below(5)) {
            case 0:
                made[at] = static_cast<char>(below(256));
                break;
            case 1:
                made[at] = static_cast<char>(made[at] ^ (1 << below(8)));
                break;
            case 2:
                made.erase(at, length);
                break;
            case 3:
                made.insert(at, made.substr(at, length));
                break;
            default: {
                const std::string& other = corpus_[below(corpus_.size())];
                if (other.empty()) break;
                const std::size_t from = below(other.size());
                made = made.substr(0, at) + other.substr(from, 1 + below(64)) + made.substr(at);
            }
        }
    }

    std::mt19937_64 random_;
    std::vector<std::string> corpus_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return std::fprintf(stderr, "usage: %s SECONDS SEED CORPUS_FOLDER\n", argv[0]), 2;
    const std::string name = std::filesystem::path(argv[0]).filename();
    const auto end = Clock::now() + std::chrono::seconds(std::atoll(argv[1]));
    Inputs inputs(std::strtoull(argv[2], nullptr, 10), argv[3]);
    g_finding = "finding-" + name + "-" + argv[2];
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(number, keep_finding);
    auto tell = Clock::now() + std::chrono::minutes(1);
    uint64_t done = 0;
    for (auto now = Clock::now(); now < end; now = Clock::now()) {
        g_input = inputs.next();
        ::alarm(25);
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(g_input.data()), g_input.size());
        ++done;
        if (now < tell) continue;
        std::printf("%s, seed %s: %llu executions so far\n", name.c_str(), argv[2],
                    static_cast<unsigned long long>(done));
        std::fflush(stdout);
        tell = now + std::chrono::minutes(1);
    }
    std::printf("%s, seed %s: %llu executions, no finding\n", name.c_str(), argv[2],
                static_cast<unsigned long long>(done));
    return 0;
}
