#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/hardware/product_precision.h"
#include "costmodel/training/model/model_shape.h"

namespace acplan::costmodel {

enum class PipelineSchedule {
  kOneForwardOneBackward,
  kInterleaved,
  kZeroBubble,   // ZB-H1: gradients of weights fill the bubble
  kZeroBubbleV,  // ZB-V: two chunks per stage, the second in reverse order
  kHalfV,     // V-Half: the same chunks, with half of the activations of 1F1B
  kMinV,      // V-Min: with a third of them
  kDualPipe,  // microbatches from both ends; a stage has its mirror's layers too
};

enum class AttentionKernel {
  kUnfused,   // products, and a fused softmax over all scores
  kFlash,     // FlashAttention 2, Triton, SDPA
  kFlashNew,  // cuDNN, FlashAttention 3
};

// The parts of a layer that a backward pass may recompute and that selective recomputation
// names. An operation belongs to one part.
enum class LayerPart {
  kNorm,
  kAttention,      // projections, rotation
  kCoreAttention,  // scores, softmax, product with the values
  kMlaUp,          // up-projections of latent attention
  kFeedforward,    // dense or shared, without its activation
  kActivation,     // of a dense feed-forward
  kMoe,            // router, dispatch, experts, combine
  kMoeActivation,
  kResidual,
};

// Returns the parts with the names of Megatron-LM's recompute_modules, and minimal_flash of
// JAX, separated by '+', ',' or a space. Returns nothing if a name is unknown.
std::optional<std::set<LayerPart>> LayerPartsNamed(std::string_view names);

enum class Recomputation {
  kNone,
  kSelective,  // `parts` of every layer
  kFull,       // every layer, or some of each stage (RecomputedLayers)
  kOperators,  // torchtitan's rule: every second product is kept
  kPlan,       // the best plan of each stage (training_plan.h)
};

// The origin of the operators, which determines the tensors saved for the backward pass.
enum class Implementation {
  kFused,  // Megatron-Core's with Transformer Engine's kernels
  kEager,  // the modules of Hugging Face transformers, as PyTorch runs them
};

// The way in which ranks of context parallelism exchange keys and values.
enum class ContextExchange {
  kRing,       // from neighbour to neighbour, beside attention (p2p)
  kAllGather,  // all of them before attention
  kAllToAll,   // each rank gets some heads of the whole sequence (Ulysses)
};

enum class CudaGraphs { kNone, kPartial, kFull };

// The spread of training over GPUs, and the settings of a step apart from the model. Counts
// of GPUs are degrees. The default of a degree is 1.
struct TrainingStrategy {
  int64_t gpus = 1;
  int64_t sequence = 0;      // tokens
  int64_t global_batch = 0;  // sequences of an iteration
  int64_t microbatch = 0;    // sequences; 0 for the fastest
  int64_t tensor = 1;
  bool sequence_parallel = false;
  int64_t pipeline = 1;
  int64_t chunks = 1;  // the chunks of a stage (virtual pipeline)
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  // The layers of the first and the last stage if their number differs from that of the
  // others (0 if it does not), and whether embedding and logits count as a layer.
  int64_t first_layers = 0;
  int64_t last_layers = 0;
  bool counts_embedding = false;
  bool counts_logits = false;
  // The numbers of embeddings, layers and logits in each chunk (layout_text.h); by rule if
  // empty.
  std::vector<int64_t> layout = {};
  int64_t context = 1;
  ContextExchange context_exchange = ContextExchange::kRing;
  int64_t expert = 1;
  int64_t expert_tensor = 1;  // the ranks that share each expert's matrices
  int64_t zero = 0;           // 0 to 3
  int64_t fsdp = 0;           // the ranks that share parameters; 0 for none
  // The number of groups of ranks that each hold all sharded values (HSDP; Megatron-LM's
  // instances of the distributed optimizer).
  int64_t optimizer_copies = 1;
  ProductPrecision precision = ProductPrecision::kBf16;
  double gradient_bytes = 4;         // of an element that is kept
  double gradient_reduce_bytes = 4;  // of an element that is sent
  AttentionKernel attention = AttentionKernel::kFlash;
  Recomputation recomputation = Recomputation::kNone;
  std::set<LayerPart> parts = {};
  // If full recomputation is of some layers: of the first `full_layers` of each stage, or of
  // every `every_layers`-th one; 0 for all layers.
  int64_t full_layers = 0;
  int64_t every_layers = 0;
  int64_t offloaded_layers = 0;  // the layers whose activations go to the host
  // The optimizer's states may wait on the host between updates. An update on the GPU brings
  // them and sends them back, part by part.
  bool offloads_states = false;
  CudaGraphs graphs = CudaGraphs::kNone;
  bool overlaps_data = false;    // gradients and parameters with computation
  bool overlaps_tensor = false;  // products with their collectives
  bool overlaps_expert = false;  // all-to-all with another microbatch
  bool dedupes_tokens = false;   // a token goes once to each node (DeepEP)
  bool fuses_experts = false;    // products of all experts are one kernel
  // The outputs with a dropout whose mask is kept: attention and feed-forward of each
  // layer, the scores of unfused attention, the embedding.
  bool drops_hidden = false;
  bool drops_scores = false;
  bool drops_embedding = false;
  Implementation implementation = Implementation::kFused;
  bool has_transformer_engine = true;  // with its workspaces, if fused
  bool is_deterministic = false;       // cuBLAS then has larger workspaces
  // The optimizer's bytes for each element: 12 for master weight and two moments in
  // float32; 4 for two moments in 16 bits without a master weight.
  double optimizer_bytes = 12;
  bool balances_ends = false;  // embedding and logits count as layers
  // The rank of adapters (LoRA) that are trained in place of the model, on all products of
  // layers or on those of attention alone; 0 if all is trained. The frozen weights have 16
  // bits, or those of layers four (QLoRA).
  int64_t lora_rank = 0;
  bool lora_attention_only = false;
  bool has_four_bit_base = false;
  // The images of a sequence, and the patches of an image (0 for the tower's own number).
  int64_t images = 0;
  int64_t image_patches = 0;
  bool freezes_towers = false;  // their projectors are trained
  // The tokens (or frames) that an encoder reads of a sequence, whose decoder has `sequence`; 0
  // without an encoder.
  int64_t source = 0;

  // Returns the data parallel degree. Divides one by one, since a product of degrees may
  // exceed 64 bits.
  int64_t Data() const { return gpus / tensor / pipeline / context; }
  int64_t ExpertData() const {
    return gpus / pipeline / expert / expert_tensor;
  }
  int64_t Microbatches() const { return global_batch / Data() / microbatch; }
  bool IsLowPrecision() const { return precision != ProductPrecision::kBf16; }
};

// Returns whether a stage has two chunks, the second ones in reverse order of the stages.
bool IsVShaped(PipelineSchedule schedule);

// Returns how many of a stage's `layers` full recomputation runs again. If it is every n-th
// one, these are the n-th, the 2 n-th and so on of the stage, as torchtitan counts them.
int64_t RecomputedLayers(const TrainingStrategy& strategy, int64_t layers);

// Returns the patches of an image in a tower, or what an encoder reads of a sequence.
int64_t PatchesOf(const Tower& tower, const TrainingStrategy& strategy);
// Returns the expectation that a strategy breaks for an encoder with a decoder, else "".
// Modelled are no pipelines, context parallelism, adapters and offload, and full recomputation
// or none. Sequence parallelism divides the source, too.
std::string_view UnmodelledWithEncoder(const TrainingStrategy& strategy);

// Returns whether the ranks of context parallelism can have the same number of heads each.
bool DividesHeads(const ModelShape& shape, const TrainingStrategy& strategy);

// Throws InputError that begins with `place` if the strategy contradicts itself or the
// model: degrees whose product is not a divisor of the GPUs, heads that tensor parallelism
// does not divide, experts that expert parallelism does not divide, sequences that context
// parallelism does not divide, ...
void CheckStrategy(const ModelShape& shape, const TrainingStrategy& strategy,
                   std::string_view place);

}  // namespace acplan::costmodel
