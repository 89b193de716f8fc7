#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// A new folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "acplan-test-XXXXXX")
            .string();
    path_ = mkdtemp(name.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

  std::vector<std::string> FileNames() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline void PutBytes(const std::filesystem::path& path,
                     std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::vector<std::filesystem::path> RealProfiles() {
  const std::filesystem::path folder = ACPLAN_DATA_DIR "/profiles";
  return {folder / "bert_large.json.gz",
          folder / "gpt2_small.json.gz",
          folder / "llama8b.json.gz",
          folder / "resnet50.json.gz",
          folder / "transformer4.json.gz",
          folder / "transformer4_torchtest.json.gz",
          folder / "unet.json.gz",
          folder / "vit_large.json.gz"};
}

}  // namespace acplan::graph
