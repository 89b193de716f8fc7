#include "graph/device/link_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

using ::testing::HasSubstr;

constexpr char kColumns[] = "link,gpus,to_host_gbs,to_device_gbs,source\n";

const DeviceTable& Devices() {
  static const DeviceTable kTable =
      ReadDeviceTable(ACPLAN_DATA_DIR "/devices/memory.csv");
  return kTable;
}

const LinkTable& Bundled() {
  static const LinkTable kTable =
      ReadLinkTable(ACPLAN_DATA_DIR "/devices/links.csv");
  return kTable;
}

const HostLink& LinkCalled(const std::string& name) {
  return LinkNamed(Bundled(), Devices(), name, "--offload");
}

std::string ErrorOf(const std::string& rows) {
  try {
    ParseLinkTable(kColumns + rows, "links.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(LinkTable, HasTheLinkOfEveryGpu) {
  std::set<std::string> gpus;
  for (const HostLink& link : Bundled().links) {
    EXPECT_FALSE(link.source.empty()) << link.name;
    for (const std::string& gpu : link.gpus) gpus.insert(gpu);
  }
  for (const std::string& gpu : DeviceNames(Devices()))
    EXPECT_TRUE(gpus.contains(gpu)) << gpu;
}

// Each generation of PCIe carries twice as much, less what its protocol takes.
TEST(LinkTable, HasRatesBelowNominalOnes) {
  double nominal = 15.8e9;
  for (const char* name : {"pcie3", "pcie4", "pcie5", "pcie6"}) {
    const HostLink& link = LinkCalled(name);
    for (const double rate : {link.to_host, link.to_device}) {
      EXPECT_LT(rate, nominal) << name;
      EXPECT_GT(rate, .75 * nominal) << name;
    }
    nominal *= 2;
  }
}

TEST(LinkTable, KnowsLinksAndGpusByTheirNames) {
  EXPECT_EQ(LinkCalled("PCIe4").name, "pcie4");
  EXPECT_EQ(LinkCalled("A100-SXM4-40GB").name, "pcie4");
  EXPECT_EQ(LinkCalled("rtx 4090").name, "pcie4");
  EXPECT_EQ(LinkCalled("gh200").to_host, 297e9);
  EXPECT_EQ(LinkCalled("gh200").to_device, 375e9);
}

TEST(LinkTable, KnowsDevicesAsTheirDriversNameThem) {
  for (const auto& [device, link] : {std::pair("a100", "pcie4"),
                                     {"NVIDIA H100 80GB HBM3", "pcie5"},
                                     {"NVIDIA GeForce RTX 4090", "pcie4"},
                                     {"Tesla T4", "pcie3"},
                                     {"NVIDIA GH200 480GB", "nvlink-c2c"},
                                     {"NVIDIA GB200", "nvlink-c2c-pair"}})
    EXPECT_EQ(LinkOfDevice(Bundled(), device, "--offload").name, link);
  EXPECT_THROW(LinkOfDevice(Bundled(), "TPU v5", "--offload"), InputError);
}

TEST(LinkTable, RefusesOtherNamesInALine) {
  const auto error = [](const std::string& name) {
    try {
      LinkCalled(name);
    } catch (const InputError& refusal) {
      return std::string(refusal.what());
    }
    return std::string();
  };
  EXPECT_THAT(error("pice4"), HasSubstr("--offload: expected a rate (25GB/s), "
                                        "a link (pcie3, pcie4, "));
  EXPECT_THAT(error("pice4"),
              HasSubstr("found \"pice4\"; did you mean pcie4?"));
  EXPECT_THAT(error("gh20"), HasSubstr("did you mean gh200?"));
}

TEST(LinkTable, RefusesWrongRows) {
  EXPECT_EQ(ErrorOf("a,,1,2,x\nb,g h,1,2,x\n"), "");
  EXPECT_THAT(ErrorOf(",,1,2,x\n"), HasSubstr("link: expected a text"));
  EXPECT_THAT(ErrorOf("a,,1,2,\n"), HasSubstr("source: expected a text"));
  EXPECT_THAT(ErrorOf("a,,0,2,x\n"), HasSubstr("to_host_gbs: expected"));
  EXPECT_THAT(ErrorOf("a,,1,,x\n"), HasSubstr("to_device_gbs: expected"));
  EXPECT_THAT(ErrorOf("a,,1,2,x\na,,1,2,x\n"), HasSubstr("no other row has"));
  EXPECT_THAT(ErrorOf("a,g,1,2,x\nb,g,1,2,x\n"),
              HasSubstr("gpus: expected GPUs that no other row has"));
}

}  // namespace
}  // namespace acplan::graph
