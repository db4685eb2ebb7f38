#include <iostream>

#include <glim/glim.h>

int fail(const glim::Error& error) {
  std::cerr << error.to_string() << '\n';
  return 1;
}

int main() {
  glim::Result<glim::Model> model =
      glim::Model::load("muse_glimmer_tiny", {.tokens = 64, .segments = 2, .settings = {"hidden=64", "num_layers=2", "feed_forward=128"}});
  if (!model) return fail(model.error());

  glim::Document document;  // a vocabulary of bytes
  for (const char c : std::string("the more I learn, the more I see how little I know")) document.tokens.push_back(c);
  for (int step = 1; step <= 40; ++step) {
    const glim::Result<glim::StepResult> result = model->train_step({.documents = {document}}, 3e-3);
    if (!result) return fail(result.error());
    if (step % 10 == 0) std::cout << step << ": loss " << result->loss << ", token accuracy " << result->token_accuracy << '\n';
  }
  if (const glim::Status saved = model->save("trained"); !saved) return fail(saved.error());

  const glim::Result<std::vector<int32_t>> tokens = model->generate(std::vector<int32_t>{'t', 'h', 'e', ' '}, 20);
  if (!tokens) return fail(tokens.error());
  for (const int32_t token : *tokens) std::cout << static_cast<char>(token);
  std::cout << '\n';
}
