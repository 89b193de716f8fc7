#include <gtest/gtest.h>

#include "costmodel/calculon/hardware/efficiency_curve.h"
#include "costmodel/calculon/hardware/network.h"
#include "costmodel/calculon/hardware/system.h"

namespace acplan::costmodel {
namespace {

TEST(EfficiencyCurve, TakesTheFirstStepThatBeginsAtOrBelow) {
  const EfficiencyCurve curve(10, {{100, .9}, {1, .5}, {0, .1}});
  EXPECT_EQ(curve.Throughput(1000), 9);
  EXPECT_EQ(curve.Throughput(100), 9);
  EXPECT_EQ(curve.Throughput(99.9), 5);
  EXPECT_EQ(curve.Throughput(1), 5);
  EXPECT_EQ(curve.Throughput(.5), 1);
  EXPECT_EQ(curve.Throughput(0), 1);
}

Network TestNetwork() {
  Network network;
  network.bandwidth = 100;
  network.efficiency = .5;
  network.latency = 3;
  network.volumes = {{{1, 0}, {1.5, -1}, {1.5, -1}, {2, -1}}};
  return network;
}

TEST(Network, TimeIsLatencyAndVolume) {
  const Network network = TestNetwork();
  using enum NetworkOperation;
  EXPECT_DOUBLE_EQ(network.Time(kPointToPoint, 100, 2), 3 + 2);
  EXPECT_DOUBLE_EQ(network.Time(kReduceScatter, 100, 4), 3 + 150 * .75 / 50);
  EXPECT_DOUBLE_EQ(network.Time(kAllReduce, 100, 4), 3 + 200 * .75 / 50);
}

TEST(System, RooflineOverlapsComputingAndMemory) {
  System system;
  EXPECT_EQ(system.ProcessingTime(2, 3), 5);
  system.is_roofline = true;
  EXPECT_EQ(system.ProcessingTime(2, 3), 3);
}

}  // namespace
}  // namespace acplan::costmodel
