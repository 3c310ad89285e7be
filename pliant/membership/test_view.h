// Views for tests that tell members apart by their slots.
#pragma once

#include <cstdint>
#include <vector>

#include "pliant/membership/view.h"

namespace pliant {

inline Member test_member(uint16_t slot) {
  return {.id = {.host = 0, .slot = slot, .incarnation = 1},
          .pid = 100 + slot,
          .host = "a",
          .address = "127.0.0.1",
          .port = 1,
          .local_name = ""};
}

inline View test_view(uint32_t epoch, const std::vector<uint16_t>& slots) {
  View view{Epoch{epoch}, {}};
  for (const uint16_t slot : slots) view.members.push_back(test_member(slot));
  return view;
}

}  // namespace pliant
