// Small pictures of digits, drawn by the program itself: no file, no download, and every worker
// draws the same ones. Each picture is a glyph of a 5 x 7 font that is moved, turned, slanted,
// stretched, thickened and covered with noise, so that no two are alike. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace digits {

inline constexpr int kSide = 16;  // pixels
inline constexpr int kPixels = kSide * kSide;
inline constexpr int kClasses = 10;

using Picture = std::array<float, kPixels>;  // 0 is paper, 1 is ink, with noise around both

struct Sample {
  Picture picture;
  int label;
};

// A random number generator that gives the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // From low to high, evenly.
  float between(float low, float high) {
    return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24F);
  }
  // About a bell curve of width 1: the sum of twelve even ones.
  float bell() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += between(0, 1);
    return sum;
  }

 private:
  uint64_t state_;
};

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 7;
inline constexpr const char* kFont[kClasses][kGlyphHeight] = {
    {" ### ", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "},
    {"  #  ", " ##  ", "# #  ", "  #  ", "  #  ", "  #  ", "#####"},
    {" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####"},
    {" ### ", "#   #", "    #", "  ## ", "    #", "#   #", " ### "},
    {"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "},
    {"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "},
    {" ### ", "#    ", "#    ", "#### ", "#   #", "#   #", " ### "},
    {"#####", "    #", "   # ", "   # ", "  #  ", "  #  ", "  #  "},
    {" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "},
    {" ### ", "#   #", "#   #", " ####", "    #", "    #", " ### "},
};

// How far a point of the glyph's plane is from the nearest ink; the pen paints where it is near.
inline float distance_to_ink(int label, float x, float y) {
  float nearest = 1e9F;
  for (int row = 0; row < kGlyphHeight; ++row) {
    for (int column = 0; column < kGlyphWidth; ++column) {
      if (kFont[label][row][column] != '#') continue;
      // The ink of a cell is a square; the distance to it is zero inside.
      const float dx = std::max(0.0F, std::fabs(x - static_cast<float>(column)) - 0.35F);
      const float dy = std::max(0.0F, std::fabs(y - static_cast<float>(row)) - 0.35F);
      nearest = std::min(nearest, dx * dx + dy * dy);
    }
  }
  return std::sqrt(nearest);
}

inline Sample draw(int label, Random& random) {
  const float angle = random.between(-0.3F, 0.3F);
  const float slant = random.between(-0.3F, 0.3F);
  const float width = random.between(1.4F, 2.2F);  // pixels to a cell of the glyph
  const float height = random.between(1.5F, 2.1F);
  const float shift_x = random.between(-2.0F, 2.0F);
  const float shift_y = random.between(-1.5F, 1.5F);
  const float pen = random.between(0.0F, 0.45F);
  const float noise = random.between(0.05F, 0.35F);
  const float middle = (kSide - 1) / 2.0F;
  Sample sample{{}, label};
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      // From the pixel back to the place of the glyph that it shows.
      const float px = static_cast<float>(column) - middle - shift_x;
      const float py = static_cast<float>(row) - middle - shift_y;
      const float turned_x = std::cos(angle) * px + std::sin(angle) * py;
      const float turned_y = -std::sin(angle) * px + std::cos(angle) * py;
      const float x = (turned_x + slant * turned_y) / width + (kGlyphWidth - 1) / 2.0F;
      const float y = turned_y / height + (kGlyphHeight - 1) / 2.0F;
      const float ink = 1 - std::clamp((distance_to_ink(label, x, y) - pen) * 2, 0.0F, 1.0F);
      sample.picture[static_cast<size_t>(row * kSide + column)] = ink + noise * random.bell();
    }
  }
  return sample;
}

// As many of each digit, one after the other.
inline std::vector<Sample> draw_samples(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<Sample> samples;
  samples.reserve(count);
  for (size_t i = 0; i < count; ++i)
    samples.push_back(draw(static_cast<int>(i % kClasses), random));
  return samples;
}

// Pictures side by side, as text.
inline std::string to_text(const std::vector<Sample>& samples) {
  const std::string shades = " .:+#@";
  std::string text;
  for (int row = 0; row < kSide; ++row) {
    for (const Sample& sample : samples) {
      for (int column = 0; column < kSide; ++column) {
        const float ink =
            std::clamp(sample.picture[static_cast<size_t>(row * kSide + column)], 0.0F, 0.999F);
        text += shades[static_cast<size_t>(ink * static_cast<float>(shades.size()))];
      }
      text += ' ';
    }
    text += '\n';
  }
  return text;
}

}  // namespace digits
