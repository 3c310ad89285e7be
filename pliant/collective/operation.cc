#include "pliant/collective/operation.h"

#include <fmt/format.h>

namespace pliant {

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kReduce: return "reduce";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kAllGather: return "all_gather";
    case Collective::kGather: return "gather";
    case Collective::kScatter: return "scatter";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBarrier: return "barrier";
    case Collective::kSend: return "send";
    case Collective::kReceive: return "receive";
  }
  return "unknown";
}

std::string describe_call(uint8_t collective, uint64_t count, uint8_t dtype, uint8_t op,
                          Rank root) {
  return fmt::format("{} of {} x {} {} (root {})", to_string(static_cast<Collective>(collective)),
                     count, dtype < kDTypes ? to_string(static_cast<DType>(dtype)) : "unknown",
                     op < kOps ? to_string(static_cast<Op>(op)) : "unknown", root);
}

}  // namespace pliant
