// Words for messages.
#pragma once

#include <string>
#include <vector>

#include "cuda_host.h"

namespace cuda_host {

// "0-3, 7" for 0, 1, 2, 3, 7.
inline std::string ranks_text(const std::vector<unsigned>& ranks) {
    std::string text;
    for (size_t i = 0; i < ranks.size();) {
        size_t last = i;
        while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
            last++;
        }
        text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
        text += last > i ? "-" + std::to_string(ranks[last]) : "";
        i = last + 1;
    }
    return text;
}

// "kernels/gno.cu:12"
inline std::string site_text(const Site& site) { return std::string(site.file) + ":" + std::to_string(site.line); }

}  // namespace cuda_host
