// Where records that replicas share lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace riptide {

/// Pieces of bytes by name (64 hexadecimal digits), in a place that many processes use and that may fail, hang or lie
/// at any time. Called by several threads at once. Nothing throws but for want of memory.
class SharedPlace {
  public:
    enum class Status { done, missing, failed };

    virtual ~SharedPlace() = default;
    /// Bytes of each piece, -1 for those that are not there. Empty when the place does not answer.
    virtual std::vector<int64_t> sizes(std::span<const std::string> names) = 0;
    /// Fills `to`; a piece of another size is missing.
    virtual Status get(const std::string& name, std::span<std::byte> to) = 0;
    virtual Status put(const std::string& name, std::span<const std::byte> bytes) = 0;
    virtual void erase(const std::string& name) = 0;
    /// What somebody must see to (a password that is wrong, say), in a sentence; "" when there is nothing new.
    std::string problem();

  protected:
    /// For problem(), each sentence once.
    void tell(const std::string& problem);

  private:
    std::mutex telling_;
    std::vector<std::string> said_;  // under it
    size_t heard_ = 0;               // of them
};

/// What is not said in an address, since command lines and logs are read by others, or need not be said there.
struct SharedAccess {
    std::string redis_password;              // where the address has none
    std::string s3_id, s3_secret, s3_token;  // an access key; the token of one that expires
    std::string s3_region, s3_endpoint;      // where the address has none
};

/// A place by its address:
///   dir:/a/folder, or the folder alone
///   redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], redis+unix://[[USER]:PASSWORD@]/a/socket
///   s3://BUCKET[/PREFIX][?region=REGION&endpoint=http://HOST:PORT]
/// Throws Error (usage: another kind of address; no_input, permission, io: a folder that cannot be used; unavailable:
/// this riptide was built without the kind). Servers are first asked when they are used. At most `budget` bytes are
/// kept in a folder (0: no bound): when there are more, the files least recently used go, by whichever process has
/// time. Servers keep to bounds of their own.
std::shared_ptr<SharedPlace> open_shared_place(std::string_view address, int64_t budget,
                                               const SharedAccess& access = {});
/// Whether it names a folder: dir:/a/folder, or none of the kinds.
bool is_folder_address(std::string_view address);
/// The address without the user and password in it, and what stands behind a question mark.
std::string without_password(std::string_view address);

/// The kinds, each in a file of its own. `address` is whole.
std::shared_ptr<SharedPlace> open_folder_place(std::string folder, int64_t budget);
std::shared_ptr<SharedPlace> open_redis_place(std::string_view address, const SharedAccess& access);
std::shared_ptr<SharedPlace> open_s3_place(std::string_view address, const SharedAccess& access);

}  // namespace riptide
