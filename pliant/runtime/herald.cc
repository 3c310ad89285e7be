#include "pliant/runtime/herald.h"

#include <utility>

namespace pliant {

void Herald::joined(PeerId peer, uint32_t epoch) {
  if (epoch != 0 && epoch == number(newest_.epoch)) {
    holders_.insert(peer);
  } else {
    holders_.erase(peer);
  }
}

std::vector<Herald::Telling> Herald::tell(const View& view, const std::vector<Departure>& gone,
                                          const std::vector<PeerId>& to) {
  auto delta = diff(newest_, view, gone);
  Telling change;
  Telling whole;
  for (const PeerId peer : to)
    (delta && holders_.contains(peer) ? change : whole).to.push_back(peer);
  if (view.epoch > newest_.epoch) {
    newest_ = view;
    holders_.clear();
  }
  // The newest may also be told again, to one that comes back.
  if (view.epoch == newest_.epoch) holders_.insert(to.begin(), to.end());
  std::vector<Telling> tellings;
  if (!change.to.empty()) {
    change.message = ViewChanged{std::move(*delta)};
    tellings.push_back(std::move(change));
  }
  if (!whole.to.empty()) {
    whole.message = ViewDecided{view, gone};
    tellings.push_back(std::move(whole));
  }
  return tellings;
}

Result<ViewDecided> complete(const ViewChanged& changed, const View& held) {
  auto view = apply(changed.delta, held);
  if (!view) return view.error();
  return ViewDecided{std::move(*view), changed.delta.gone};
}

}  // namespace pliant
