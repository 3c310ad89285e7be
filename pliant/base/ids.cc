#include "pliant/base/ids.h"

namespace pliant {

std::string to_string(PeerId peer) {
  return std::to_string(peer.host) + "." + std::to_string(peer.slot) + "#" +
         std::to_string(peer.incarnation);
}

}  // namespace pliant
