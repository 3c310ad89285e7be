// The synchroniser of the C ABI.
#include <fmt/format.h>

#include <cstring>

#include "capi/handles.h"

using namespace pliant;        // NOLINT: the functions below are C
using namespace pliant::capi;  // NOLINT

namespace {

template <typename Word>
Word word_of(int number) {
  return static_cast<Word>(number < 0 || number > UINT8_MAX ? UINT8_MAX : number);
}

// Calls `body` with the synchroniser.
template <typename Handle, typename Body>
pliant_status with(const char* function, Handle* handle, std::initializer_list<Argument> needed,
                   Body body) noexcept {
  if (handle == nullptr) return fail_null(function, "synchroniser");
  return guarded(function, handle->session, needed, [&] { return body(*handle->synchroniser); });
}

Status need_step(const pliant_synchroniser* handle, const char* function) {
  if (handle->session->step) return {};
  return invalid(std::string(function) + ": there is no step; call pliant_begin_step() first");
}

Result<Synchroniser::Options> options_of(const pliant_synchroniser_options* options) {
  if (options == nullptr) return Synchroniser::Options{};
  if (options->size != sizeof(pliant_synchroniser_options))
    return invalid(
        "pliant_synchroniser_create: the options have another size than this library's; "
        "call pliant_synchroniser_options_init() first");
  return Synchroniser::Options{
      .synchronisation = word_of<Synchronisation>(options->synchronisation),
      .alpha = options->alpha,
      .compression = word_of<Compression>(options->compression),
      .seed = options->seed,
      .may_switch = options->may_switch != 0,
      .share_results = options->share_results != 0};
}

}  // namespace

extern "C" {

const char* pliant_synchronisation_name(pliant_synchronisation synchronisation) {
  return to_string(word_of<Synchronisation>(synchronisation));
}

const char* pliant_compression_name(pliant_compression compression) {
  return to_string(word_of<Compression>(compression));
}

pliant_status pliant_synchroniser_options_init(pliant_synchroniser_options* options, size_t size) {
  return guarded(__func__, kNoView, {{options, "options"}}, [&]() -> Status {
    if (size != sizeof *options)
      return invalid(
          fmt::format("pliant_synchroniser_options_init: {} bytes of options, but this "
                      "library knows {}",
                      size, sizeof *options));
    *options = {};
    options->size = size;
    options->alpha = Synchroniser::Options{}.alpha;
    return {};
  });
}

pliant_status pliant_synchroniser_create(pliant_session* session, const pliant_bucket* buckets,
                                         size_t count, const pliant_synchroniser_options* options,
                                         pliant_synchroniser** synchroniser) {
  return guarded(
      __func__, session, {{buckets, "buckets"}, {synchroniser, "result"}}, [&]() -> Status {
        std::vector<Bucket> known;
        for (size_t i = 0; i < count; ++i) {
          const pliant_bucket& bucket = buckets[i];
          if (bucket.name == nullptr)
            return invalid(fmt::format("pliant_synchroniser_create: bucket {} has no name", i));
          if (pliant_dtype_size(bucket.dtype) == 0)
            return invalid(fmt::format(
                "pliant_synchroniser_create: bucket '{}' has an unknown type", bucket.name));
          known.push_back({bucket.name, bucket.parameters, bucket.gradients, bucket.count,
                           dtype_of(bucket.dtype)});
        }
        const auto wanted = options_of(options);
        if (!wanted) return wanted.error();
        auto handle = std::make_unique<pliant_synchroniser>();
        auto made = Synchroniser::make(*session->session, std::move(known), *wanted);
        if (!made) return made.error();
        handle->synchroniser = std::move(*made);
        handle->session = session;
        session->synchronisers.push_back(handle->synchroniser);
        *synchroniser = handle.release();
        return {};
      });
}

pliant_status pliant_synchroniser_destroy(pliant_synchroniser* synchroniser) {
  delete synchroniser;
  return PLIANT_OK;
}

pliant_status pliant_synchroniser_begin(pliant_synchroniser* synchroniser) {
  const char* const function = __func__;
  return with(function, synchroniser, {}, [&](Synchroniser& known) -> Status {
    PLIANT_TRY(need_step(synchroniser, function));
    return known.begin(synchroniser->session->step);
  });
}

pliant_status pliant_synchroniser_ready(pliant_synchroniser* synchroniser, size_t bucket) {
  return with(__func__, synchroniser, {}, [&](Synchroniser& known) { return known.ready(bucket); });
}

pliant_status pliant_synchroniser_commit(pliant_synchroniser* synchroniser) {
  const pliant_status committed =
      with(__func__, synchroniser, {}, [&](Synchroniser& known) -> Status {
        pliant_session* const session = synchroniser->session;
        PLIANT_TRY(before_commit(session, &known));
        const auto apply = known.commit();
        refresh_view(session);
        if (!apply) return apply.error();
        if (*apply || session->step.more()) return after_commit(session, &known);
        return Error{Code::kCancelled, "this member is not part of the job any more", {}, {}};
      });
  return committed == PLIANT_OK && synchroniser->session->step.more() ? PLIANT_MORE : committed;
}

pliant_status pliant_synchroniser_gradients(const pliant_synchroniser* synchroniser, size_t bucket,
                                            const void** gradients, size_t* bytes) {
  return with(__func__, synchroniser, {{gradients, "result"}, {bytes, "bytes"}},
              [&](const Synchroniser& known) -> Status {
                if (bucket >= known.buckets())
                  return invalid(
                      fmt::format("pliant_synchroniser_gradients: there is no bucket {}", bucket));
                const std::span<const std::byte> found = known.gradients(bucket);
                *gradients = found.data();
                *bytes = found.size();
                return {};
              });
}

pliant_status pliant_synchroniser_applied(pliant_synchroniser* synchroniser) {
  return with(__func__, synchroniser, {}, [&](Synchroniser& known) { return known.applied(); });
}

pliant_status pliant_synchroniser_switch_to(pliant_synchroniser* synchroniser,
                                            pliant_synchronisation synchronisation) {
  return with(__func__, synchroniser, {}, [&](Synchroniser& known) {
    return known.switch_to(word_of<Synchronisation>(synchronisation));
  });
}

pliant_status pliant_synchroniser_synchronisation(const pliant_synchroniser* synchroniser,
                                                  pliant_synchronisation* synchronisation) {
  return with(__func__, synchroniser, {{synchronisation, "result"}},
              [&](const Synchroniser& known) -> Status {
                *synchronisation = static_cast<int>(known.synchronisation());
                return {};
              });
}

pliant_status pliant_synchroniser_last_step(const pliant_synchroniser* synchroniser,
                                            pliant_synchroniser_report* report) {
  return with(__func__, synchroniser, {{report, "report"}},
              [&](const Synchroniser& known) -> Status {
                if (report->size != sizeof *report)
                  return invalid("pliant_synchroniser_last_step: set the report's size first");
                report->pulled_from = -1;
                report->pulled_version = 0;
                if (const auto& pull = known.last_pull()) {
                  report->pulled_from = synchroniser->session->session->view().rank_of(pull->peer);
                  report->pulled_version = pull->version;
                }
                report->pulls_missed = known.pulls_missed();
                report->exposed_seconds = seconds(known.exposed());
                report->reduced_bytes = known.reduced_bytes();
                return {};
              });
}

}  // extern "C"
