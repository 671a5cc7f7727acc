// riptide doctor: will it run here? Each line is a check; what is wrong says how to mend it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/environment.h"
#include "apps/support/local_http.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "engine/prompt/model_text.h"
#include "io/checkpoint.h"
#include "models/dflash_config.h"
#include "tensor/gpu.h"

namespace riptide::apps {

namespace {

struct DoctorFlags {
    std::string model;
    ServerAddress server;
    int gpu = 0;
};

enum class Verdict { fine, note, wrong };

class Report {
  public:
    void add(Verdict verdict, const std::string& what, const std::string& found) {
        const char* mark = verdict == Verdict::fine ? "ok  " : verdict == Verdict::note ? "note" : "BAD ";
        tell("{}  {:<8} {}\n", mark, what, found);
        wrong_ += verdict == Verdict::wrong;
    }
    /// A check that says by its error what is wrong.
    template <class Check>
    void run(const std::string& what, Verdict otherwise, const Check& check) {
        try {
            add(Verdict::fine, what, check());
        } catch (const Error& error) {
            add(otherwise, what, error.what());
        }
    }
    int wrong() const { return wrong_; }

  private:
    int wrong_ = 0;
};

std::string check_cpu() {
    std::string found = fmt::format("{} threads", std::thread::hardware_concurrency());
#if defined(__x86_64__)
    found += __builtin_cpu_supports("avx512vnni") ? ", AVX-512 with VNNI"
             : __builtin_cpu_supports("avx2")     ? ", AVX2"
                                                  : ", neither AVX2 nor AVX-512: it will be slow";
#endif
    return found;
}

std::string check_gpu(const DoctorFlags& o) {
    GpuOptions options;
    options.ordinal = o.gpu;
    const auto gpu = Gpu::open(options);
    return fmt::format("{}, {} free", gpu->info().name, human_bytes(gpu->available()));
}

std::string check_model(const DoctorFlags& o, bool gpu) {
    const auto checkpoint = open_model_or_demo(o.model);
    refuse_dflash(*checkpoint);
    const int64_t bytes = checkpoint->tensor_bytes(), memory = available_memory();
    const std::string name = o.model.empty() ? "the demo model" : o.model;
    if (!gpu && memory > 0 && bytes > memory)
        fail(ErrorKind::unavailable,
             "{}: its weights take {}, and {} of memory are free: take a smaller type (riptide "
             "quantize) or a machine with more",
             name, human_bytes(bytes), human_bytes(memory));
    const ModelText text(*checkpoint);
    RT_CHECK(text.tokenizer() != nullptr, "{}: {} of weights, but no tokenizer: only riptide run --tokens works", name,
             human_bytes(bytes));
    try {
        text.require_chats();
    } catch (const Error& error) {
        fail("{}: {} of weights, but only text completions work: {}", name, human_bytes(bytes), error.what());
    }
    return fmt::format("{}: {} of weights, chat template ({}) and tokenizer work", name, human_bytes(bytes),
                       text.dialect()->name);
}

/// Whether somebody listens there.
std::string check_port(const DoctorFlags& o) {
    const int port = o.server.port;
    if (const auto reply = get_local(o.server, "/health", 2)) {
        if (reply->body.find("\"status\"") != std::string::npos)
            return fmt::format("{}: a riptide server answers there already: {}", port, reply->body);
        fail(ErrorKind::unavailable, "{}: another program has it; choose another with --port", port);
    }
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const bool free = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (!free) fail(ErrorKind::unavailable, "{}: another program has it; choose another with --port", port);
    return fmt::format("{}: free", port);
}

std::string check_clients() {
    std::string found;
    for (const char* name : {"claude", "codex", "opencode", "pi"})
        if (!find_program(name).empty()) found += fmt::format("{}{}", found.empty() ? "" : ", ", name);
    if (found.empty()) fail("none of claude, codex, opencode and pi is on PATH: riptide launch has nothing to start");
    return found + ": riptide launch starts them";
}

int doctor(const DoctorFlags& o) {
    Report report;
    report.run("cpu", Verdict::wrong, check_cpu);
    const int64_t memory = available_memory();
    report.add(memory > (int64_t{1} << 30) ? Verdict::fine : Verdict::note, "memory", human_bytes(memory) + " free");
    bool gpu = false;
    report.run("gpu", Verdict::note, [&] {
        std::string found = check_gpu(o);
        gpu = true;
        return found;
    });
    report.run("model", Verdict::wrong, [&] { return check_model(o, gpu); });
    report.run("port", Verdict::wrong, [&] { return check_port(o); });
    report.run("clients", Verdict::note, check_clients);
    if (report.wrong() > 0) fail(ErrorKind::unavailable, "{} of these checks failed", report.wrong());
    return 0;
}

}  // namespace

void add_doctor(Command& app, Action& action) {
    Command* cmd =
        app.add_subcommand("doctor", "Check whether everything is there to run a model, and say what is not");
    auto options = std::make_shared<DoctorFlags>();
    cmd->add_option("MODEL", options->model, "A GGUF file or a folder; left out: the demo model");
    add_server_address(*cmd, options->server);
    cmd->add_option("--tls-ca", options->server.tls_ca, "File with its certificate, or who signed it: speak TLS");
    cmd->add_option("--gpu", options->gpu, "Number of the GPU")->capture_default_str();
    cmd->footer("Examples:\n  riptide doctor\n  riptide doctor laguna-xs.2-q4_k_m.gguf --port 8080");
    cmd->callback([options, &action] { action = [options] { return doctor(*options); }; });
}

}  // namespace riptide::apps
