#include "costmodel/planning/checked_block.h"

namespace acplan::costmodel {

bool LayerReader::Gathers(int i) const {
  return layers_[i].comm.kind == LayerComm::Kind::kOverlapped &&
         !layers_[i].comm.is_conjugate &&
         hardware_.comm_type == TensorCommType::kScattered;
}

MadeValue LayerReader::Read(int i, int which) const {
  const int source = layers_[i].sources[which];
  if (source == kBlockInput) return kBlockInputValue;
  if (!layers_[i].reads_gathered_input) return {source, MadeKind::kOutput};
  return Gathers(source) ? MadeValue{source, MadeKind::kGathered}
                         : Read(source, 0);
}

std::vector<MadeValue> LayerReader::ReadToRun(int i) const {
  if (Gathers(i)) return {{i, MadeKind::kGathered}};
  std::vector<MadeValue> values = {Read(i, 0)};
  if (layers_[i].sources[1] != kNoLayer) values.push_back(Read(i, 1));
  return values;
}

std::vector<LayerReading> LayerReader::ReadToGoBack(int i) const {
  const Layer& layer = layers_[i];
  const double bytes = layer.activation_bytes;
  if (layer.reuses_activation || !layer.stores_activation) return {};
  if (Gathers(i)) {
    return {{{i, MadeKind::kGathered}, bytes, true},
            {Read(i, 0), bytes / hardware_.peers, false}};
  }
  if (layer.makes_activation) return {{{i, MadeKind::kMask}, bytes, true}};
  if (layer.first_input_bytes > 0) {
    return {{Read(i, 0), layer.first_input_bytes, true},
            {Read(i, 1), bytes - layer.first_input_bytes, true}};
  }
  return {{Read(i, 0), bytes, layer.comm.kind != LayerComm::Kind::kSeparate}};
}

KeepingBlock::KeepingBlock(const LayerReader& reader, std::set<MadeValue> kept)
    : reader_(reader),
      kept_(std::move(kept)),
      computes_(reader.size(), false),
      gathers_(reader.size(), false) {
  for (int i = 0; i < reader_.size(); ++i) {
    for (const LayerReading& reading : reader_.ReadToGoBack(i)) {
      if (Has(reading.value)) {
        bytes_ += reading.bytes;
      } else if (reading.is_for_backward && reading.bytes > 0) {
        Make(reading.value);
      }
    }
  }
}

Block KeepingBlock::Recomputed(Block block) const {
  for (int i = 0; i < reader_.size(); ++i) {
    Layer& layer = block.layers()[i];
    const bool is_separate = layer.comm.kind == LayerComm::Kind::kSeparate;
    const bool sends = layer.comm.kind != LayerComm::Kind::kNone;
    layer.is_recomputed = computes_[i] && !is_separate;
    layer.comm.is_repeated =
        reader_.Gathers(i) ? gathers_[i] : computes_[i] && sends;
  }
  return block;
}

void KeepingBlock::Make(const MadeValue& value) {
  const auto [layer, made] = value;
  if (made == MadeKind::kGathered) {
    if (gathers_[layer]) return;
    gathers_[layer] = true;
    MakeUnlessKept(reader_.Read(layer, 0));
    return;
  }
  if (computes_[layer]) return;
  computes_[layer] = true;
  for (const MadeValue& read : reader_.ReadToRun(layer)) MakeUnlessKept(read);
}

}  // namespace acplan::costmodel
