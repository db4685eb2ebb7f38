// glim import, glim export: Hugging Face folders in and out, through the model's own parameter names.
#include <fmt/format.h>

#include <cstdio>

#include "cli/command.h"
#include "runtime/transfer.h"

namespace glim::cli {
namespace {

struct TransferArguments : ModelOptions {
  std::string output;
  uint64_t max_shard_bytes = 0;
};

Status transfer(const TransferArguments& arguments) {
  TransferOptions options;
  if (!arguments.dtype.empty()) {
    GLIM_ASSIGN(options.dtype, real_dtype(arguments));
  }
  if (arguments.max_shard_bytes > 0) options.max_shard_bytes = arguments.max_shard_bytes;
  GLIM_ASSIGN(const ModelSource source, open_model(arguments.model, arguments.set, arguments.weights));
  GLIM_TRY(transfer_checkpoint(source, arguments.output, options));
  std::printf("%zu tensors written to %s\n", source.checkpoint->tensors().size(), arguments.output.c_str());
  return ok();
}

void add(CLI::App& app, Body& body, const char* name, const char* what, const char* example) {
  auto arguments = std::make_shared<TransferArguments>();
  arguments->dtype = "";
  CLI::App* command = app.add_subcommand(name, what);
  add_model_options(*command, *arguments);
  command->add_option("--weights", arguments->weights, "a .safetensors file or an HF folder")->type_name("PATH");
  command->add_option("-o,--output", arguments->output, "the folder to write")->required()->type_name("FOLDER");
  command->add_option("--dtype", arguments->dtype, "convert the parameters to f32, f64 or bf16");
  command->add_option("--max-shard-bytes", arguments->max_shard_bytes, "start a new shard after so many bytes");
  command->footer(example);
  command->callback([arguments, &body] { body = [arguments] { return transfer(*arguments); }; });
}

}  // namespace

void add_import(CLI::App& app, Body& body) {
  add(app, body, "import", "check a Hugging Face folder against its model, and copy it",
      "Example: glim import downloaded/ --output checkpoint/ --dtype bf16");
}
void add_export(CLI::App& app, Body& body) {
  add(app, body, "export", "write weights as a Hugging Face folder",
      "Example: glim export muse_glimmer_30b --weights checkpoint/ --output hf/ --max-shard-bytes 50000000000");
}

}  // namespace glim::cli
