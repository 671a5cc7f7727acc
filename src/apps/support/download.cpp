#include "apps/support/download.h"

#include <curl/curl.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

constexpr std::size_t kMostListBytes = std::size_t{64} << 20;
constexpr long kStallSeconds = 60;

/// One GET.
class Transfer {
  public:
    Transfer(const Hub& hub, const std::string& url) : url_(url), easy_(curl_easy_init(), curl_easy_cleanup) {
        RT_CHECK(easy_ != nullptr, ErrorKind::system, "libcurl cannot be started");
        set(CURLOPT_URL, url.c_str());
        set(CURLOPT_PROTOCOLS_STR, "http,https");
        set(CURLOPT_REDIR_PROTOCOLS_STR, hub.endpoint.starts_with("https:") ? "https" : "http,https");
        set(CURLOPT_FOLLOWLOCATION, 1L);
        set(CURLOPT_MAXREDIRS, 8L);
        set(CURLOPT_FAILONERROR, 1L);
        set(CURLOPT_NOSIGNAL, 1L);
        set(CURLOPT_CONNECTTIMEOUT, 30L);
        set(CURLOPT_LOW_SPEED_LIMIT, 1L);
        set(CURLOPT_LOW_SPEED_TIME, kStallSeconds);
        set(CURLOPT_USERAGENT, "riptide");
        set(CURLOPT_WRITEFUNCTION, &Transfer::write);
        set(CURLOPT_WRITEDATA, this);
        if (hub.token.empty()) return;
        set(CURLOPT_HTTPAUTH, CURLAUTH_BEARER);  // curl keeps it from other hosts that a redirect names
        set(CURLOPT_XOAUTH2_BEARER, hub.token.c_str());
    }

    std::function<void(std::string_view)> sink;
    /// From this byte on; the answer must be 206 then.
    void resume_at(int64_t byte) {
        from_ = byte;
        set(CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(byte));
    }
    /// Throws Error, or what the sink has thrown. False: the server does not go on where it is asked to.
    bool run() {
        const CURLcode code = curl_easy_perform(easy_.get());
        if (thrown_) std::rethrow_exception(thrown_);
        long status = 0;
        curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
        if (from_ > 0 && (code == CURLE_RANGE_ERROR || status == 416)) return false;
        if (status == 401 || status == 403)
            fail(ErrorKind::permission, "{}: status {}: the repository is private or gated: give --token-file", url_,
                 status);
        if (status == 404) fail(ErrorKind::no_input, "{}: there is no such thing", url_);
        if (code != CURLE_OK) fail(ErrorKind::unavailable, "{}: {}", url_, curl_easy_strerror(code));
        return true;
    }

  private:
    template <class Value>
    void set(CURLoption option, Value value) {
        RT_CHECK(curl_easy_setopt(easy_.get(), option, value) == CURLE_OK, ErrorKind::system,
                 "libcurl is too old or lacks a feature");
    }
    static std::size_t write(const char* data, std::size_t size, std::size_t count, Transfer* self) {
        try {
            self->sink({data, size * count});
            return size * count;
        } catch (...) {
            self->thrown_ = std::current_exception();
            return 0;
        }
    }

    std::string url_;
    std::unique_ptr<CURL, void (*)(CURL*)> easy_;
    int64_t from_ = 0;
    std::exception_ptr thrown_;
};

/// Of a text that is no more than [A-Za-z0-9._/-]: as one part of an address.
std::string as_part(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '/' ? "%2F" : std::string(1, c);
    return out;
}

HubFile file_of(const json::object& entry) {
    HubFile file;
    file.path = entry.at("path").as_string();
    file.size = entry.at("size").to_number<int64_t>();
    if (const json::value* lfs = entry.if_contains("lfs"); lfs != nullptr && lfs->is_object()) {
        file.sha256 = lfs->at("oid").as_string();
        file.size = lfs->at("size").to_number<int64_t>();
    } else if (const json::value* blob = entry.if_contains("oid"); blob != nullptr && blob->is_string()) {
        file.blob = blob->get_string();
    }
    RT_CHECK(file.size >= 0, "{}: a size of {}", file.path, file.size);
    return file;
}

/// What the hub would call what is at `path`, by SHA-256 or as git does; "" if it calls it nothing.
std::string digest_of_file(const HubFile& as, const std::string& path, const std::function<void(int64_t)>& progress) {
    if (as.sha256.empty() && as.blob.empty()) return {};
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    RT_CHECK(file != nullptr, ErrorKind::io, "{}: {}", path, std::strerror(errno));
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    EVP_DigestInit_ex(context.get(), as.sha256.empty() ? EVP_sha1() : EVP_sha256(), nullptr);
    const std::string head = as.sha256.empty() ? fmt::format("blob {}", as.size) : "";
    if (!head.empty()) EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1);
    std::vector<char> piece(1 << 20);
    int64_t done = 0;
    for (std::size_t got = 0; (got = std::fread(piece.data(), 1, piece.size(), file.get())) > 0;) {
        EVP_DigestUpdate(context.get(), piece.data(), got);
        progress(done += static_cast<int64_t>(got));
    }
    RT_CHECK(std::ferror(file.get()) == 0, ErrorKind::io, "{}: cannot be read to its end", path);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_DigestFinal_ex(context.get(), digest, &size);
    std::string out;
    for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
    return out;
}

/// What the hub calls the content.
const std::string& digest_of(const HubFile& file) { return file.sha256.empty() ? file.blob : file.sha256; }

/// Appends what is missing of `part`.
void fetch_part(const Hub& hub, const std::string& url, const std::string& part, int64_t size,
                const std::function<void(int64_t)>& progress) {
    for (int attempt = 0;; ++attempt) {
        std::error_code ec;
        const auto there = static_cast<int64_t>(std::filesystem::file_size(part, ec));
        int64_t done = ec ? 0 : there;
        if (done == size && !ec) return;
        if (done > size) done = 0;
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(part.c_str(), done > 0 ? "ab" : "wb"),
                                                                   std::fclose);
        RT_CHECK(file != nullptr, ErrorKind::io, "{}: {}", part, std::strerror(errno));
        Transfer transfer(hub, url);
        if (done > 0) transfer.resume_at(done);
        transfer.sink = [&](std::string_view bytes) {
            done += std::ssize(bytes);
            RT_CHECK(done <= size, "{}: the hub sends more than the {} bytes that it announced", url, size);
            RT_CHECK(std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size(), ErrorKind::io, "{}: {}",
                     part, std::strerror(errno));
            progress(done);
        };
        if (transfer.run()) {
            RT_CHECK(std::fflush(file.get()) == 0, ErrorKind::io, "{}: {}", part, std::strerror(errno));
            RT_CHECK(done == size, ErrorKind::unavailable, "{}: the transfer ended after {} of {} bytes: pull again",
                     url, done, size);
            return;
        }
        RT_CHECK(attempt == 0, ErrorKind::unavailable, "{}: the hub cannot go on at byte {}", url, done);
        std::filesystem::remove(part, ec);  // from the start, then
    }
}

}  // namespace

std::vector<HubFile> list_files(const Hub& hub, const std::string& repository) {
    check_hub_name(repository);
    check_hub_name(hub.revision);
    const std::string url =
        fmt::format("{}/api/models/{}/tree/{}?recursive=true", hub.endpoint, repository, as_part(hub.revision));
    std::string text;
    Transfer transfer(hub, url);
    transfer.sink = [&](std::string_view bytes) {
        RT_CHECK(text.size() + bytes.size() <= kMostListBytes, "{}: the list is too long", url);
        text += bytes;
    };
    transfer.run();
    std::vector<HubFile> files;
    try {
        const json::value list = parse_json(text, url);
        for (const json::value& entry : list.as_array())
            if (entry.at("type") == "file") files.push_back(file_of(entry.as_object()));
    } catch (const std::exception& error) {
        fail("{}: not a list of files: {}", url, error.what());
    }
    return files;
}

bool is_fetched(const HubFile& file, const std::string& path, const std::function<void(int64_t)>& progress) {
    std::error_code ec;
    return static_cast<int64_t>(std::filesystem::file_size(path, ec)) == file.size && !ec &&
           digest_of_file(file, path, progress) == digest_of(file);
}

void fetch_file(const Hub& hub, const std::string& repository, const HubFile& file, const std::string& path,
                const std::function<void(int64_t)>& progress) {
    const std::string url =
        fmt::format("{}/{}/resolve/{}/{}", hub.endpoint, repository, as_part(hub.revision), file.path);
    const std::string part = path + ".part";
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    fetch_part(hub, url, part, file.size, progress);
    const std::string found = digest_of_file(file, part, [](int64_t) {});
    if (found != digest_of(file)) {
        std::filesystem::remove(part);
        fail("{}: {} is {}, expected {}: removed; pull again", path, file.sha256.empty() ? "git's SHA-1" : "SHA-256",
             found, digest_of(file));
    }
    std::filesystem::rename(part, path);
}

}  // namespace riptide::apps
