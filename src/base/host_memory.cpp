#include "base/host_memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace riptide {

int64_t physical_memory() { return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE); }

int64_t available_memory() {
    std::ifstream file("/proc/meminfo");
    for (std::string word; file >> word;) {
        int64_t kib = 0;
        if (word == "MemAvailable:" && file >> kib) return kib << 10;
    }
    return 0;
}

}  // namespace riptide
