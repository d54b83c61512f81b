// The bounds of sampled selection beside the exact values, on the host.
#include "walk/contest.cuh"

extern "C" void bounds_and_values(const uint32_t* words, const float* y, const float* temperatures, int count, float* bounds, float* values) {
  for (int i = 0; i < count; ++i) {
    bounds[i] = wts::Bound(temperatures[i]).of(y[i], words[i]);
    values[i] = wts::sampled_value(y[i], temperatures[i], words[i]);
  }
}
