#include "pliant/runtime/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <string>

#include "pliant/transport/socket.h"

namespace pliant {
namespace {

TEST(LinePrefixer, WholeLinesGetThePrefix) {
  LinePrefixer lines("[3] ");
  EXPECT_EQ(lines.feed("one\ntwo\nthr"), "[3] one\n[3] two\n");
  EXPECT_EQ(lines.feed("ee"), "");
  EXPECT_EQ(lines.feed("\n\n"), "[3] three\n[3] \n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LinePrefixer, LastLineIsEnded) {
  LinePrefixer lines("[0] ");
  EXPECT_EQ(lines.feed("no newline"), "");
  EXPECT_EQ(lines.finish(), "[0] no newline\n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LinePrefixer, CarriageReturnsEndLinesToo) {
  LinePrefixer lines("> ");
  EXPECT_EQ(lines.feed("10%\r20%\r"), "> 10%\r");
  EXPECT_EQ(lines.feed("30%\r\nok\r"), "> 20%\r> 30%\r\n");
  EXPECT_EQ(lines.feed("\nnext\n"), "> ok\r\n> next\n");
}

TEST(LinePrefixer, EndlessLineIsBroken) {
  LinePrefixer lines("");
  size_t bytes = 0;
  for (int i = 0; i < 100; ++i) bytes += lines.feed(std::string(4096, 'x')).size();
  EXPECT_GE(bytes, size_t{300} * 1024);
  EXPECT_LE(lines.finish().size(), LinePrefixer::kLineBytesMax + 1);
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    read = Fd(ends[0]);
    write = Fd(ends[1]);
  }
  std::string take() const {
    std::array<char, 65536> room{};
    const ssize_t got = ::read(read.get(), room.data(), room.size());
    return {room.data(), got > 0 ? static_cast<size_t>(got) : 0};
  }
  Fd read;
  Fd write;
};

TEST(Output, SlowReaderHoldsWritersBackAndLosesNothing) {
  Loop loop;
  const std::lock_guard guard(loop);
  const Pipe pipe;
  Output output(loop, pipe.write.get());
  std::string sent;
  int number = 0;
  while (!output.full()) {
    const std::string line = "line " + std::to_string(number++) + "\n";
    output.write(line);
    sent += line;
  }
  bool room = false;
  output.when_room(&room, [&] { room = true; });
  std::string got;
  while (got.size() < sent.size()) {
    got += pipe.take();
    loop.turn();
  }
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(room);
  EXPECT_FALSE(output.full());
}

TEST(Output, ForgottenWriterIsNotCalled) {
  Loop loop;
  const std::lock_guard guard(loop);
  const Pipe pipe;
  Output output(loop, pipe.write.get());
  while (!output.full()) output.write(std::string(4096, 'x'));
  bool called = false;
  output.when_room(&called, [&] { called = true; });
  output.forget(&called);
  for (int i = 0; i < 100 && output.full(); ++i) {
    pipe.take();
    loop.turn();
  }
  EXPECT_FALSE(output.full());
  EXPECT_FALSE(called);
}

TEST(Output, FilesNeedNoLoop) {
  Loop loop;
  const std::lock_guard guard(loop);
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Output output(loop, fileno(file));
    output.write("to a file\n");
    output.drain();
  }
  std::array<char, 64> room{};
  const ssize_t got = pread(fileno(file), room.data(), room.size(), 0);
  EXPECT_EQ(std::string(room.data(), static_cast<size_t>(got)), "to a file\n");
  std::fclose(file);
}

}  // namespace
}  // namespace pliant
