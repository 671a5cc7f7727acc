// S3, or another server of its protocol: MinIO, Ceph, Garage, R2.
//
// Each piece is an object, ENDPOINT/BUCKET/PREFIX/<name>. libcurl signs what is asked (Signature Version 4). That the
// hash of the body is in the header, and so among what is signed, is ours: 7.88 signs what it is given, but would not
// send the header. What is old goes by a rule of the bucket's.
#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/percent.h"
#include "base/sha256.h"
#include "cache/shared/place.h"

namespace riptide {

namespace {

using S3Clock = std::chrono::steady_clock;

constexpr size_t kS3AtOnce = 16, kMostS3Links = 8;
constexpr long kS3ConnectMs = 1000, kS3ContinueMs = 300;
constexpr std::chrono::milliseconds kS3Answer{2000};
constexpr int64_t kS3LeastRate = 10'000'000;  // bytes a second, for which it has so much longer

struct S3Address {
    std::string shown, endpoint, region = "us-east-1", bucket, front;  // front: of all that is asked for
    std::string id, secret, token;
};

/// One request, where it stands while libcurl works on it.
class S3Request {
  public:
    enum class Kind { head, get, put, erase };

    S3Request(const S3Address& at, Kind kind, const std::string& name) : kind_(kind), url_(at.front + name) {
        header(at.token.empty() ? "" : "x-amz-security-token: " + at.token);
        set(CURLOPT_URL, url_.c_str());
        set(CURLOPT_AWS_SIGV4, ("aws:amz:" + at.region + ":s3").c_str());
        set(CURLOPT_USERNAME, at.id.c_str());
        set(CURLOPT_PASSWORD, at.secret.c_str());
        set(CURLOPT_PROTOCOLS_STR, "http,https");
        set(CURLOPT_USERAGENT, "riptide");
        set(CURLOPT_NOSIGNAL, 1L);
        set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // a connection for each that is under way
#if LIBCURL_VERSION_NUM >= 0x075700
        set(CURLOPT_QUICK_EXIT, 1L);  // who ends a request does not wait for a name that is looked up
#endif
        set(CURLOPT_CONNECTTIMEOUT_MS, kS3ConnectMs);
        set(CURLOPT_EXPECT_100_TIMEOUT_MS, kS3ContinueMs);
        set(CURLOPT_PRIVATE, this);
        set(CURLOPT_WRITEFUNCTION, &S3Request::write);
        set(CURLOPT_WRITEDATA, this);
        if (kind == Kind::head) set(CURLOPT_NOBODY, 1L);
        if (kind == Kind::erase) set(CURLOPT_CUSTOMREQUEST, "DELETE");
        if (kind == Kind::put) return;
        header("x-amz-content-sha256: " + to_hex(sha256({})));
        set(CURLOPT_HTTPHEADER, headers_.get());
    }
    S3Request(const S3Request&) = delete;
    S3Request& operator=(const S3Request&) = delete;

    void receive_in(std::span<std::byte> to) { to_ = to; }
    void send(std::span<const std::byte> bytes) {
        from_ = bytes;
        header("x-amz-content-sha256: " + to_hex(sha256(bytes)));
        set(CURLOPT_HTTPHEADER, headers_.get());
        set(CURLOPT_UPLOAD, 1L);
        set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes.size()));
        set(CURLOPT_READFUNCTION, &S3Request::read);
        set(CURLOPT_READDATA, this);
        set(CURLOPT_SEEKFUNCTION, &S3Request::seek);
        set(CURLOPT_SEEKDATA, this);
    }
    CURL* easy() const { return easy_.get(); }
    void done(CURLcode how) {
        code_ = how;
        curl_easy_getinfo(easy(), CURLINFO_RESPONSE_CODE, &status_);
        curl_off_t length = -1;
        curl_easy_getinfo(easy(), CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        length_ = length;
    }
    Kind kind() const { return kind_; }
    CURLcode code() const { return code_; }
    /// HTTP's; 0: none came.
    long status() const { return status_; }
    /// Bytes of the object, as the server says.
    int64_t length() const { return length_; }
    /// All of the object is there, and it is as long as was expected.
    bool whole() const { return code_ == CURLE_OK && !longer_ && got_ == to_.size(); }
    /// It came to its end, or past the one expected.
    bool ended() const { return code_ == CURLE_OK || longer_; }

  private:
    template <class Value>
    void set(CURLoption option, Value value) {
        if (easy_ == nullptr || curl_easy_setopt(easy_.get(), option, value) != CURLE_OK) throw std::bad_alloc();
    }
    void header(const std::string& line) {
        if (line.empty()) return;
        curl_slist* const more = curl_slist_append(headers_.get(), line.c_str());
        if (more == nullptr) throw std::bad_alloc();
        static_cast<void>(headers_.release());
        headers_.reset(more);
    }
    static size_t write(const char* data, size_t size, size_t count, S3Request* self) {
        long status = 0;
        curl_easy_getinfo(self->easy(), CURLINFO_RESPONSE_CODE, &status);
        const size_t bytes = size * count;
        if (status != 200 || self->kind_ != Kind::get) return bytes;  // what a server says of an error
        self->longer_ = bytes > self->to_.size() - self->got_;
        if (self->longer_) return 0;
        std::memcpy(self->to_.data() + self->got_, data, bytes);
        self->got_ += bytes;
        return bytes;
    }
    static size_t read(char* to, size_t size, size_t count, S3Request* self) {
        const size_t bytes = std::min(size * count, self->from_.size() - self->sent_);
        std::memcpy(to, self->from_.data() + self->sent_, bytes);
        self->sent_ += bytes;
        return bytes;
    }
    static int seek(S3Request* self, curl_off_t to, int) {  // from the start, since a connection was lost
        self->sent_ = static_cast<size_t>(to);
        return CURL_SEEKFUNC_OK;
    }

    const Kind kind_;
    const std::string url_;
    std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_{nullptr, curl_slist_free_all};
    const std::unique_ptr<CURL, void (*)(CURL*)> easy_{curl_easy_init(), curl_easy_cleanup};
    std::span<std::byte> to_;
    std::span<const std::byte> from_;
    size_t got_ = 0, sent_ = 0;
    bool longer_ = false;
    CURLcode code_ = CURLE_OK;
    long status_ = 0;
    int64_t length_ = -1;
};

class S3Place final : public SharedPlace {
  public:
    explicit S3Place(S3Address address) : address_(std::move(address)) {
        static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
        RT_CHECK(ready == CURLE_OK, ErrorKind::system, "libcurl cannot be started");
        const std::unique_ptr<CURL, void (*)(CURL*)> easy(curl_easy_init(), curl_easy_cleanup);
        const CURLcode signs = curl_easy_setopt(easy.get(), CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
        RT_CHECK(signs == CURLE_OK, ErrorKind::unavailable, "{}: this libcurl does not sign (AWS_SIGV4): {}",
                 address_.shown, curl_easy_strerror(signs));
    }
    std::vector<int64_t> sizes(std::span<const std::string> names) override;
    Status get(const std::string& name, std::span<std::byte> to) override;
    Status put(const std::string& name, std::span<const std::byte> bytes) override;
    void erase(const std::string& name) override;

  private:
    /// Connections, for one thread at a time.
    using Links = std::unique_ptr<CURLM, CURLMcode (*)(CURLM*)>;
    using Requests = std::vector<std::unique_ptr<S3Request>>;

    Status status_of(const S3Request& request);
    void run(const Requests& requests, S3Clock::time_point until);
    Status run(std::unique_ptr<S3Request> request, int64_t bytes);
    Links take();
    void give(Links links);

    const S3Address address_;
    std::mutex mutex_;
    std::vector<Links> links_;  // under it: those that nobody uses
};

S3Place::Links S3Place::take() {
    const std::lock_guard lock(mutex_);
    if (links_.empty()) return {curl_multi_init(), curl_multi_cleanup};
    Links links = std::move(links_.back());
    links_.pop_back();
    return links;
}

void S3Place::give(Links links) {
    const std::lock_guard lock(mutex_);
    if (links_.size() < kMostS3Links) links_.push_back(std::move(links));
}

/// Sixteen at a time, until one fails. Those that had no time, or no turn, have no status.
void S3Place::run(const Requests& requests, S3Clock::time_point until) {
    Links links = take();
    if (links == nullptr) return;
    size_t begun = 0;
    std::vector<CURL*> running;
    running.reserve(kS3AtOnce);
    bool well = true;
    while (well && (begun < requests.size() || !running.empty())) {
        for (; begun < requests.size() && running.size() < kS3AtOnce; ++begun) {
            running.push_back(requests[begun]->easy());
            curl_multi_add_handle(links.get(), running.back());
        }
        int left = 0;
        well = curl_multi_perform(links.get(), &left) == CURLM_OK;
        while (const CURLMsg* const message = curl_multi_info_read(links.get(), &left)) {
            CURL* const easy = message->easy_handle;
            S3Request* request = nullptr;
            curl_easy_getinfo(easy, CURLINFO_PRIVATE, &request);
            request->done(message->data.result);
            curl_multi_remove_handle(links.get(), easy);
            std::erase(running, easy);
            well = well && status_of(*request) != Status::failed;
        }
        const auto time = std::chrono::ceil<std::chrono::milliseconds>(until - S3Clock::now()).count();
        well = well && time > 0;
        const bool full = begun == requests.size() || running.size() == kS3AtOnce;
        if (well && full && !running.empty())
            well = curl_multi_poll(links.get(), nullptr, 0, static_cast<int>(time), nullptr) == CURLM_OK;
    }
    for (CURL* easy : running) curl_multi_remove_handle(links.get(), easy);
    give(std::move(links));
}

SharedPlace::Status S3Place::run(std::unique_ptr<S3Request> request, int64_t bytes) {
    Requests one;
    one.push_back(std::move(request));
    run(one, S3Clock::now() + kS3Answer + std::chrono::milliseconds(bytes * 1000 / kS3LeastRate));
    return status_of(*one.front());
}

SharedPlace::Status S3Place::status_of(const S3Request& request) {
    const long status = request.status();
    const bool puts = request.kind() == S3Request::Kind::put;
    constexpr CURLcode kPasses[] = {CURLE_OK, CURLE_GOT_NOTHING, CURLE_SEND_ERROR, CURLE_RECV_ERROR};
    if (status == 0 && std::find(std::begin(kPasses), std::end(kPasses), request.code()) == std::end(kPasses))
        tell(fmt::format("{}: {} cannot be used: {}", address_.shown, address_.endpoint,
                         curl_easy_strerror(request.code())));
    if (status == 401 || status == 403)
        tell(
            fmt::format("{}: the server refuses what is asked ({}): the access key is wrong, or this machine's clock, "
                        "or the key may not do all of GetObject, PutObject, DeleteObject and ListBucket",
                        address_.shown, status));
    if (status == 404 && puts) tell(fmt::format("{}: there is no such bucket", address_.shown));
    if ((status >= 300 && status < 400) || status == 400)
        tell(fmt::format("{}: the server answers {}: is the bucket in region {}?{}", address_.shown, status,
                         address_.region, status == 400 ? " Is AWS_SESSION_TOKEN the key's, and still valid?" : ""));
    if (status == 404) return puts ? Status::failed : Status::missing;
    if (status != 200 && status != 204) return Status::failed;
    if (request.kind() != S3Request::Kind::get) return request.code() == CURLE_OK ? Status::done : Status::failed;
    return request.whole() ? Status::done : request.ended() ? Status::missing : Status::failed;
}

std::vector<int64_t> S3Place::sizes(std::span<const std::string> names) {
    Requests requests;
    for (const std::string& name : names)
        requests.push_back(std::make_unique<S3Request>(address_, S3Request::Kind::head, name));
    run(requests, S3Clock::now() + kS3Answer);
    std::vector<int64_t> sizes;
    for (const auto& request : requests) {
        const Status status = status_of(*request);
        if (status == Status::failed) return {};
        sizes.push_back(status == Status::done ? request->length() : -1);
    }
    return sizes;
}

SharedPlace::Status S3Place::get(const std::string& name, std::span<std::byte> to) {
    auto request = std::make_unique<S3Request>(address_, S3Request::Kind::get, name);
    request->receive_in(to);
    return run(std::move(request), std::ssize(to));
}

SharedPlace::Status S3Place::put(const std::string& name, std::span<const std::byte> bytes) {
    auto request = std::make_unique<S3Request>(address_, S3Request::Kind::put, name);
    request->send(bytes);
    return run(std::move(request), std::ssize(bytes));
}

void S3Place::erase(const std::string& name) {
    run(std::make_unique<S3Request>(address_, S3Request::Kind::erase, name), 0);
}

/// What a signature says of a path is what stands in it only where nothing in it is to be escaped.
bool is_plain(std::string_view text, std::string_view others) {
    return std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || others.find(c) != std::string_view::npos;
    });
}

}  // namespace

std::shared_ptr<SharedPlace> open_s3_place(std::string_view address, const SharedAccess& access) {
    const size_t question = std::min(address.find('?'), address.size());
    S3Address at{.shown = without_password(address), .endpoint = access.s3_endpoint};
    if (!access.s3_region.empty()) at.region = access.s3_region;
    std::string_view place = address.substr(0, question).substr(5), query = address.substr(question);
    while (!query.empty()) {
        const size_t end = std::min(query.find('&', 1), query.size()), equals = std::min(query.find('='), end);
        const std::string_view what = query.substr(1, std::max<size_t>(equals, 1) - 1);
        RT_CHECK(equals < end && (what == "region" || what == "endpoint"), ErrorKind::usage,
                 "{}: only region=... and endpoint=... may stand behind ?", at.shown);
        (what == "region" ? at.region : at.endpoint) = percent_decoded(query.substr(equals + 1, end - equals - 1));
        query = query.substr(end);
    }
    while (place.ends_with('/')) place.remove_suffix(1);
    at.bucket = place.substr(0, place.find('/'));
    constexpr std::string_view kLetters = "-._~/ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    RT_CHECK(!at.bucket.empty() && is_plain(at.bucket, "-.") && is_plain(place, kLetters) &&
                 place.find("//") == std::string_view::npos && place.find("/.") == std::string_view::npos,
             ErrorKind::usage, "{}: expected s3://BUCKET/PREFIX of letters, digits, and ._~-", at.shown);
    RT_CHECK(!at.region.empty() && is_plain(at.region, "-"), ErrorKind::usage, "{}: '{}' is no region", at.shown,
             at.region);
    if (at.endpoint.empty()) at.endpoint = fmt::format("https://s3.{}.amazonaws.com", at.region);
    while (at.endpoint.ends_with('/')) at.endpoint.pop_back();
    const size_t host = at.endpoint.starts_with("http://") ? 7 : at.endpoint.starts_with("https://") ? 8 : 0;
    RT_CHECK(host > 0 && at.endpoint.size() > host && at.endpoint.find_first_of("/?#@", host) == std::string::npos,
             ErrorKind::usage, "{}: '{}' is no endpoint, expected http://HOST:PORT or https://HOST", at.shown,
             without_password(at.endpoint));
    RT_CHECK(!access.s3_id.empty() && !access.s3_secret.empty(), ErrorKind::usage,
             "{}: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set", at.shown);
    at.id = access.s3_id;
    at.secret = access.s3_secret;
    at.token = access.s3_token;
    at.front = fmt::format("{}/{}/", at.endpoint, place);
    return std::make_shared<S3Place>(std::move(at));
}

}  // namespace riptide
