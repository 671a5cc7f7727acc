// The memory that all requests at one time may take.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace riptide::server {

/// A count of bytes with a limit. Thread-safe.
class HttpRoom {
  public:
    explicit HttpRoom(int64_t most) : most_(most) {}

    /// One request's part of it, given back at the end.
    class Share {
      public:
        Share() = default;
        /// An empty one.
        explicit Share(HttpRoom& room) : room_(&room) {}
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;
        ~Share() { become(0); }

        /// False, with nothing taken, if there is no room for so many bytes. REQUIRES an empty share.
        bool take(HttpRoom& room, int64_t bytes) {
            if ((room.taken_ += bytes) > room.most_) {
                room.taken_ -= bytes;
                return false;
            }
            room_ = &room;
            bytes_ = bytes;
            return true;
        }
        /// Another size, which is there already: never refused.
        void become(int64_t bytes) {
            if (room_ != nullptr) room_->taken_ += bytes - std::exchange(bytes_, bytes);
        }

      private:
        HttpRoom* room_ = nullptr;
        int64_t bytes_ = 0;
    };

    int64_t most() const { return most_; }

  private:
    const int64_t most_;
    std::atomic<int64_t> taken_ = 0;
};

}  // namespace riptide::server
