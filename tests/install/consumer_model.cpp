// Uses an installed copy of the model library: it links with all that it needs, and a folder that
// is not there is refused with an error rather than a crash.
#include <replayssm/model.hpp>

#include <cstdio>

int main() {
  const auto model = replayssm::Model::load("no/such/folder");
  if (model.ok()) {
    std::printf("a folder that does not exist was loaded\n");
    return 1;
  }
  std::printf("refused as it should be: %s\n", model.status().to_string().c_str());
  return 0;
}
