#include "pliant/runtime/http_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "pliant/base/text.h"
#include "pliant/runtime/http_text.h"

namespace pliant {
namespace {

constexpr size_t kChunkLineBytesMax = 64;

Error broken(std::string_view what) {
  return invalid(fmt::format("the answer is no HTTP: {}", what));
}

// All of `text` as a number; nothing if it is none or too large.
std::optional<size_t> number_in(std::string_view text, int base) {
  size_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (read.ec != std::errc{} || read.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// "HTTP/1.1 404 Not Found"; the reason may be missing, even with the blank before it.
std::optional<int> status_of(std::string_view line) {
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ') return std::nullopt;
  if (line.size() > 12 && line[12] != ' ') return std::nullopt;
  const auto status = number_in(line.substr(9, 3), 10);
  if (!status || *status < 100) return std::nullopt;
  return static_cast<int>(*status);
}

}  // namespace

Status HttpResponseParser::take_head() {
  const size_t end = buffer_.find(kHeadEnd);
  std::string_view head = std::string_view(buffer_).substr(0, end);
  response_ = {};
  bool is_first = true;
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find(kLineEnd));
    head = head.substr(std::min(head.size(), line.size() + kLineEnd.size()));
    if (std::exchange(is_first, false)) {
      const auto status = status_of(line);
      if (!status) return broken("it does not begin with HTTP/1.1 and a status");
      response_.status = *status;
      continue;
    }
    const size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos)
      return broken("a header field is not of the form Name: value");
    const std::string name = lower(line.substr(0, colon));
    const auto [at, added] =
        response_.fields.emplace(name, trimmed(line.substr(colon + 1), kFieldBlanks));
    // Two lengths are two opinions of where the body ends.
    if (!added && (name == "content-length" || name == "transfer-encoding"))
      return broken(fmt::format("the header field {} comes twice", name));
  }
  if (is_first) return broken("it is empty");
  buffer_.erase(0, end + kHeadEnd.size());
  scanned_bytes_ = 0;
  return choose_framing();
}

Status HttpResponseParser::choose_framing() {
  // "100 Continue" and the like come before the response proper.
  if (response_.status < 200) return {};
  left_ = 0;
  state_ = State::kUntilEnd;
  if (response_.status == 204 || response_.status == 304) {
    state_ = State::kDone;
  } else if (const auto coding = response_.fields.find("transfer-encoding");
             coding != response_.fields.end()) {
    if (lower(coding->second) != "chunked") return broken("its transfer coding is not known");
    state_ = State::kChunkSize;
  } else if (const auto length = response_.fields.find("content-length");
             length != response_.fields.end()) {
    const auto bytes = number_in(length->second, 10);
    if (!bytes) return broken("Content-Length is no number");
    if (*bytes > limits_.body_bytes_max)
      return invalid(fmt::format("the answer is larger than {} bytes", limits_.body_bytes_max));
    left_ = *bytes;
    state_ = State::kBody;
  }
  return {};
}

// One line without its end; false if it has not arrived whole.
bool HttpResponseParser::take_line(std::string& line) {
  const size_t end = buffer_.find(kLineEnd);
  if (end == std::string::npos) return false;
  line = buffer_.substr(0, end);
  buffer_.erase(0, end + kLineEnd.size());
  return true;
}

void HttpResponseParser::take_body(size_t bytes_max) {
  const size_t bytes = std::min(bytes_max, buffer_.size());
  response_.body.append(buffer_, 0, bytes);
  buffer_.erase(0, bytes);
}

Status HttpResponseParser::take_chunk_size() {
  std::string line;
  if (!take_line(line)) {
    // All of the line but the last byte of its end may have come.
    if (buffer_.size() > kChunkLineBytesMax + 1) return broken("a chunk has no length");
    return {};
  }
  const auto bytes =
      number_in(trimmed(std::string_view(line).substr(0, line.find(';')), kFieldBlanks), 16);
  if (!bytes || line.size() > kChunkLineBytesMax) return broken("a chunk has no length");
  if (*bytes > limits_.body_bytes_max - response_.body.size())
    return invalid(fmt::format("the answer is larger than {} bytes", limits_.body_bytes_max));
  left_ = *bytes;
  state_ = left_ == 0 ? State::kTrailer : State::kChunk;
  return {};
}

Result<bool> HttpResponseParser::advance() {
  const State before = state_;
  std::string line;
  switch (state_) {
    case State::kHead: {
      const size_t from = scanned_bytes_ - std::min(scanned_bytes_, kHeadEnd.size() - 1);
      const size_t end = buffer_.find(kHeadEnd, from);
      scanned_bytes_ = buffer_.size();
      if (std::min(end, buffer_.size()) > limits_.head_bytes_max)
        return broken("its head has no end");
      if (end == std::string::npos) return true;
      PLIANT_TRY(take_head());
      return false;
    }
    case State::kBody:
    case State::kChunk: {
      const size_t had = response_.body.size();
      take_body(left_);
      left_ -= response_.body.size() - had;
      if (left_ > 0) return true;
      state_ = before == State::kBody ? State::kDone : State::kChunkEnd;
      return false;
    }
    case State::kUntilEnd:
      if (buffer_.size() > limits_.body_bytes_max - response_.body.size())
        return invalid(fmt::format("the answer is larger than {} bytes", limits_.body_bytes_max));
      take_body(buffer_.size());
      return true;
    case State::kChunkSize: PLIANT_TRY(take_chunk_size()); return state_ == before;
    case State::kChunkEnd:
      if (buffer_.size() < kLineEnd.size()) return true;
      if (!buffer_.starts_with(kLineEnd)) return broken("a chunk is longer than it said");
      buffer_.erase(0, kLineEnd.size());
      state_ = State::kChunkSize;
      return false;
    case State::kTrailer:
      if (!take_line(line)) {
        if (trailer_bytes_ + buffer_.size() <= limits_.head_bytes_max) return true;
        return broken("its trailer has no end");
      }
      trailer_bytes_ += line.size() + kLineEnd.size();
      if (trailer_bytes_ > limits_.head_bytes_max) return broken("its trailer has no end");
      if (line.empty()) state_ = State::kDone;
      return false;
    case State::kDone: break;
  }
  return true;
}

Result<std::optional<HttpResponse>> HttpResponseParser::feed(std::string_view bytes) {
  buffer_.append(bytes);
  while (true) {
    const auto waits = advance();
    if (!waits) return waits.error();
    if (state_ == State::kDone) return std::optional(std::move(response_));
    if (*waits) return std::optional<HttpResponse>();
  }
}

Result<HttpResponse> HttpResponseParser::end() {
  if (state_ == State::kUntilEnd) return std::move(response_);
  if (state_ == State::kHead && buffer_.empty())
    return invalid("the connection was closed without an answer");
  return invalid("the connection broke off in the middle of the answer");
}

}  // namespace pliant
