// cycles SOURCE_FOLDER NUMBER [MAX_GROWTH_KB]: creates, uses and destroys a model so many times, and fails when the process grew by more
// than the bound after the first tenth of them.
#include <fstream>

#include "check.h"

namespace {

// kB of "VmRSS:" or "VmSize:".
long process_size(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != key) continue;
    long size = 0;
    status >> size;
    return size;
  }
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace embedding;
  if (argc < 3) return 2;
  const int number = std::atoi(argv[2]);
  const long bound = argc > 3 ? std::atol(argv[3]) : 0;
  glim::LoadOptions options = own_options();
  options.settings = {"num_layers=1"};
  const std::vector<int32_t> prompt{1, 2};
  long resident = 0, mapped = 0;
  for (int cycle = 0; cycle < number; ++cycle) {
    if (cycle == number / 10) resident = process_size("VmRSS:"), mapped = process_size("VmSize:");
    glim::Model model = own_model(argv[1], options);
    take(model.train_step(counting_batch(cycle), 1e-2));
    if (cycle % 10 == 0) take(model.generate(prompt, 2));
    glim::Model moved = std::move(model);
    if (glim::Model::load("no such model")) return 1;  // an error path
  }
  const long growth = process_size("VmRSS:") - resident, mapped_growth = process_size("VmSize:") - mapped;
  if (bound > 0 && (growth > bound || mapped_growth > bound)) {
    std::fprintf(stderr, "%d cycles: resident memory grew by %ld kB, mapped memory by %ld kB; at most %ld kB are allowed\n", number, growth,
                 mapped_growth, bound);
    return 1;
  }
  return 0;
}
