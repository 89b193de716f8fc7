#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace acplan::costmodel {

struct ModelShape;

// A product of a projector: vectors of `inner` elements become vectors of `columns`.
struct ProjectorProduct {
  int64_t inner = 0;
  int64_t columns = 0;
  int64_t patches = 1;  // the patches that one vector stands for
};

// A stack of layers that images pass before the text model: an embedding of patches, layers
// whose patches see all others of their image (or window), and a projector to the hidden size
// of the text model. A tower is on the stage that has the embedding of tokens. An encoder is
// such a stack, too: its patches are the tokens or frames of a source.
struct Tower {
  std::string name;  // the key of its configuration
  // The layers. Never null; the sizes of a vocabulary are 0.
  std::shared_ptr<const ModelShape> stack;
  // Reads the source of a sequence, of which the text model is the decoder, in place of images.
  bool is_encoder = false;
  // The patches of an image, or the frames of a source of sound; 0 for a source of text.
  int64_t patches = 0;
  int64_t positions = 0;  // vectors of an image in the layers, beside patches
  int64_t patch_elements = 0;  // the numbers of a patch of pixels
  // The parameters of the embedding of patches, positions and norms outside of layers; and of
  // the projector, with its norms and biases.
  int64_t outer_parameters = 0;
  int64_t projector_parameters = 0;
  int64_t merged_patches = 1;  // the patches that become one token of the text
  std::vector<ProjectorProduct> projector = {};
};

// Returns the parameters of the embedding of patches and of the layers, without the projector.
double StackParameters(const Tower& tower);
// Returns the tokens of the text model that an image of `patches` becomes.
int64_t ImageTokens(const Tower& tower, int64_t patches);

}  // namespace acplan::costmodel
