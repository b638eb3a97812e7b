// Decodes 64 tokens through one Mamba-2 layer; the state is written at every 16th token only.
#include <iostream>
#include <replayssm/cache.hpp>
using namespace replayssm;

int main() {
  std::vector<float> a_log(4, 0.0F), x(4 * 64, 0.1F), bc(128, 0.1F), dt(4, -2.0F), y(4 * 64);
  CacheConfig config;
  config.layers = {
      {.rule = Rule::kMamba2, .heads = 4, .groups = 1, .value_dim = 64, .key_dim = 128}};
  config.weights = {{.a_log = a_log.data()}};
  config.slots = 1;
  Result<Cache> cache = Cache::create(config);
  if (!cache.ok()) return std::cerr << cache.status().to_string() << '\n', 1;
  const std::int64_t slot = cache->acquire().value();
  LayerInputs in;
  in.value = TensorView::contiguous(x.data(), DType::kF32, 1, 4, 64);
  in.key = in.query = TensorView::contiguous(bc.data(), DType::kF32, 1, 1, 128);
  in.gate = TensorView::contiguous(dt.data(), DType::kF32, 1, 4);
  in.out = TensorView::contiguous(y.data(), DType::kF32, 1, 4, 64);
  for (int t = 0; t < 64; ++t) {
    const bool done = cache->begin({.count = 1, .slots = &slot}).ok() && cache->fold().ok() &&
                      cache->step(in).ok() && cache->commit({.count = 1}).ok();
    if (!done) return 1;
  }
  std::cout << cache->info(slot)->position << " tokens, " << cache->info(slot)->committed
            << " records in the ring, y = " << y[0]
            << "\nstate bytes a token: " << state_bytes_per_token(config, 1, 1).value()
            << " by replay, ";
  config.decode = DecodeMode::kConventional;
  std::cout << state_bytes_per_token(config, 1, 1).value() << " conventionally\n";
}
