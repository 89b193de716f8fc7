#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/device/device_table.h"
#include "graph/run/training_run.h"

namespace acplan::cli {

// An allocator on a device, as a user names them.
struct AllocatorQuestion {
  graph::AllocatorConfig config;
  std::optional<int64_t> device_bytes = {};      // nothing: without a limit
  std::optional<graph::DeviceOffer> offer = {};  // of a device that was named
  bool wants_least_device = true;
  // RunOptions::makes_state_first; nothing: either.
  std::optional<bool> makes_state_first = {};
  // The other options of a run; its makes_state_first does not count.
  graph::RunOptions run = {};

  int64_t device() const;
  // Returns the options with makes_state_first, by default false.
  graph::RunOptions run_options() const;
};

// The flags --allocator, --device-memory, --torch-version, --optimizer-state,
// --empty-cache, --model-order, --ddp and --without-least-device.
struct AllocatorFlags {
  std::string allocator;
  std::string device_memory;
  std::string torch_version;
  std::string optimizer_state;
  std::vector<std::string> empty_cache;
  std::string model_order;
  std::string ddp;
  bool without_least_device = false;

  // Adds the flags; `of_device` describes --device-memory.
  void AddTo(CLI::App& app, const std::string& of_device);
  // Adds --optimizer-state; `default_text` says what happens without it.
  void AddOptimizerStateTo(CLI::App& app, const std::string& default_text);
  // Adds --empty-cache and --model-order.
  void AddRunTo(CLI::App& app);
  // Adds --ddp.
  void AddDdpTo(CLI::App& app);
  // Adds --without-least-device.
  void AddWithoutLeastTo(CLI::App& app);
  // Returns the name of the first that is given, "" for none.
  std::string_view FirstGiven() const;
  // Parses them. Throws InputError that names the flag.
  AllocatorQuestion Question() const;
};

}  // namespace acplan::cli
