#include "pliant/policy/signals.h"

namespace pliant {

const char* to_string(Synchronisation synchronisation) {
  switch (synchronisation) {
    case Synchronisation::kSynchronous: return "synchronous";
    case Synchronisation::kModelAveraging: return "model_averaging";
    case Synchronisation::kPairAveraging: return "pair_averaging";
  }
  return "unknown";
}

}  // namespace pliant
