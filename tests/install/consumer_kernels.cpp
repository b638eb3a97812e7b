// Uses an installed copy of the kernels: the version agrees and the CPU implementation is there.
#include <replayssm/backends.hpp>
#include <replayssm/cache.hpp>

#include <cstdio>
#include <string>

int main() {
  const std::string version(replayssm::version());
  if (version != EXPECTED_VERSION) {
    std::printf("version %s, but the package says %s\n", version.c_str(), EXPECTED_VERSION);
    return 1;
  }
  int on_cpu = 0;
  for (const auto& implementation : replayssm::implementations()) {
    std::printf("%s on %s\n", implementation.name.c_str(), implementation.device.c_str());
    if (implementation.device == "cpu" && implementation.available) ++on_cpu;
  }
  if (on_cpu == 0) std::printf("no implementation runs on this CPU\n");
  return on_cpu > 0 ? 0 : 1;
}
