// The bounds of sampled selection beside the exact values, on the host: of resident rows one, of streamed rows two.
#include "walk/contest.cuh"

extern "C" void bounds_and_values(const uint32_t* words, const float* y, const float* temperatures, int count, float* bounds, float* lows, float* highs,
                                  float* values) {
  for (int i = 0; i < count; ++i) {
    const wts::Bounds two = wts::TwoBounds::at(temperatures[i]).of(y[i], words[i]);
    lows[i] = two.low, highs[i] = two.high;
    bounds[i] = wts::Bound(temperatures[i]).of(y[i], words[i]);
    values[i] = wts::sampled_value(y[i], temperatures[i], words[i]);
  }
}
