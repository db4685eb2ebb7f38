// write_seeds TARGET FOLDER: one file for each seed of a fuzz target.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/seeds.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::vector<std::string> seeds = glim::seeds_of(argv[1]);
  std::filesystem::create_directories(argv[2]);
  for (size_t k = 0; k < seeds.size(); ++k) {
    std::ofstream out(std::filesystem::path(argv[2]) / ("seed_" + std::to_string(k)), std::ios::binary);
    out << seeds[k];
    if (!out.flush()) return 5;
  }
  std::printf("%zu seeds\n", seeds.size());
  return seeds.empty() ? 1 : 0;
}
