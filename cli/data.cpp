// glim data: packs documents into a file of tokens, and shows what a row really contains.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "engine/quote.h"
#include "runtime/data/packed_file.h"
#include "runtime/data/training_data.h"
#include "runtime/train_config.h"

namespace glim::cli {
namespace {

struct DataArguments {
  std::vector<std::string> paths, ignored_keys;
  std::string model, vocabulary, overlong, output;
  int64_t tokens = 0, row = -1, step = -1;
  int micro_step = -1;
  bool validation = false, json = false;
};
struct Chosen {
  DataConfig config;
  DataOptions options;
  Vocabulary vocabulary;
};

Result<Vocabulary> vocabulary_of_model(const std::string& model, const std::vector<std::string>& set = {}) {
  GLIM_ASSIGN(const ModelSource source, open_model(model, set, ""));
  return vocabulary_of(source.spec);
}

// A training configuration says everything; files need a vocabulary, which is `otherwise` when no option names one.
Result<Chosen> choose(const DataArguments& arguments, std::optional<Vocabulary> otherwise) {
  Chosen chosen;
  chosen.config.validation_fraction = 0;
  if (arguments.paths.size() == 1 && arguments.paths[0].ends_with(".toml")) {
    GLIM_ASSIGN(const TrainConfig train, load_train_config(arguments.paths[0]));
    chosen.config = train.data;
    chosen.options = {train.tokens, train.seed, static_cast<int>(train.micro_steps)};
    if (arguments.model.empty() && arguments.vocabulary.empty()) {
      GLIM_ASSIGN(chosen.vocabulary, vocabulary_of_model(train.model, train.set));
      otherwise = chosen.vocabulary;
    }
  } else {
    chosen.config.files = arguments.paths;
  }
  if (arguments.tokens > 0) chosen.options.tokens = arguments.tokens;
  if (!arguments.overlong.empty()) {
    GLIM_ASSIGN(chosen.config.overlong, parse_overlong(arguments.overlong));
  }
  for (const std::string& key : arguments.ignored_keys) chosen.config.ignored_keys.push_back(key);
  if (!arguments.model.empty()) {
    GLIM_ASSIGN(chosen.vocabulary, vocabulary_of_model(arguments.model));
  } else if (arguments.vocabulary == "bytes") {
    chosen.vocabulary = {256, true};
  } else if (!arguments.vocabulary.empty()) {
    const char* const end = arguments.vocabulary.data() + arguments.vocabulary.size();
    const auto [rest, error] = std::from_chars(arguments.vocabulary.data(), end, chosen.vocabulary.size);
    if (error != std::errc() || rest != end || chosen.vocabulary.size < 1 || chosen.vocabulary.size > INT32_MAX)
      return invalid_argument(fmt::format("--vocab is \"bytes\" or a number from 1 to 2^31 - 1, not {}", quote(arguments.vocabulary)));
  } else if (otherwise) {
    chosen.vocabulary = *otherwise;
  } else {
    return invalid_argument("--model or --vocab must say which tokens there are");
  }
  return chosen;
}

Status pack(const DataArguments& arguments) {
  if (!arguments.output.ends_with(".tokens"))
    return invalid_argument("--output must end in .tokens, or nothing would read it as packed data");
  GLIM_ASSIGN(const Chosen chosen, choose(arguments, std::nullopt));
  GLIM_ASSIGN(const std::vector<DataFile> files, list_data_files(chosen.config.files, chosen.config.text));
  GLIM_ASSIGN(const Documents documents, load_documents(files, chosen.vocabulary, chosen.config.ignored_keys));
  GLIM_TRY(write_packed(documents, chosen.vocabulary, arguments.output));
  int64_t num_documents = 0, num_tokens = 0;
  for (const TokenBlock& block : documents.blocks) {
    num_documents += block.num_documents();
    num_tokens += block.num_tokens();
  }
  if (arguments.json) {
    const nlohmann::ordered_json report{{"documents", num_documents},
                                        {"tokens", num_tokens},
                                        {"vocabulary", chosen.vocabulary.size},
                                        {"fingerprint", to_hex(documents.digest)},
                                        {"output", arguments.output}};
    std::printf("%s\n", report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s documents, %s tokens of a vocabulary of %s written to %s (fingerprint %s)\n", with_commas(num_documents).c_str(),
                with_commas(num_tokens).c_str(), with_commas(chosen.vocabulary.size).c_str(), arguments.output.c_str(),
                to_hex(documents.digest).c_str());
  }
  return ok();
}

// A byte as it may be printed: itself, or an escape.
std::string text_of(int32_t token, const Vocabulary& vocabulary) {
  if (!vocabulary.is_bytes || token > 255) return "";
  if (token == '\n') return "\\n";
  if (token == '\t') return "\\t";
  if (token == '\\') return "\\\\";
  return token >= 0x20 && token < 0x7f ? std::string(1, static_cast<char>(token)) : fmt::format("\\x{:02x}", token);
}

struct Row {
  std::string name;
  TokenBatch batch;
};
Result<Row> find_row(const DataArguments& arguments, const TrainingData& data) {
  const auto outside = [](std::string_view option, int64_t value, int64_t count) {
    return invalid_argument(fmt::format("{} is {}, expected 0 to {}", option, value, count - 1));
  };
  if (arguments.step >= 0 && (arguments.row >= 0 || arguments.validation))
    return invalid_argument("--step names a training row by itself: leave out --row and --validation");
  if (arguments.micro_step >= 0 && arguments.step < 0) return invalid_argument("--micro-step needs --step");
  const int64_t row = std::max<int64_t>(arguments.row, 0), micro_steps = data.options().micro_steps;
  if (arguments.validation) {
    if (data.num_validation_rows() == 0) return invalid_argument("--validation: nothing is held out");
    if (row >= data.num_validation_rows()) return outside("--row", row, data.num_validation_rows());
    return Row{fmt::format("validation row {}", row), data.validation_batch(row)};
  }
  const int micro_step = std::max(arguments.micro_step, 0);
  if (micro_step >= micro_steps) return outside("--micro-step", micro_step, micro_steps);
  if (arguments.step > INT64_MAX / micro_steps - 1) return outside("--step", arguments.step, INT64_MAX / micro_steps);
  if (arguments.step >= 0)
    return Row{fmt::format("step {}, micro-step {}", arguments.step, micro_step), data.batch(arguments.step, micro_step)};
  if (row >= data.num_rows()) return outside("--row", row, data.num_rows());
  return Row{fmt::format("row {} of epoch 0", row), data.batch(row / micro_steps, static_cast<int>(row % micro_steps))};
}

nlohmann::ordered_json to_json(const DataStatistics::Part& part) {
  return {{"pieces", part.num_pieces},
          {"tokens", part.num_tokens},
          {"targets", part.num_valid},
          {"rows", part.num_rows},
          {"padding", part.padding}};
}

void print_json(const TrainingData& data, const Row& row, const Vocabulary& vocabulary) {
  const DataStatistics& s = data.statistics();
  const TokenBatch& batch = row.batch;
  nlohmann::ordered_json report{{"documents", s.num_documents},
                                {"empty", s.num_empty},
                                {"unlabelled", s.num_unlabelled},
                                {"split", s.num_split},
                                {"dropped", s.num_dropped},
                                {"dropped_tokens", s.num_dropped_tokens},
                                {"training", to_json(s.training)},
                                {"validation", to_json(s.validation)},
                                {"tokens_per_row", data.options().tokens},
                                {"fingerprint", data.fingerprint()},
                                {"row", row.name}};
  nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
  for (int64_t segment = 0; segment < batch.num_segments; ++segment) {
    const auto begin = static_cast<size_t>(batch.segments[static_cast<size_t>(segment)]),
               end = static_cast<size_t>(batch.segments[static_cast<size_t>(segment) + 1]);
    for (size_t i = begin; i < end; ++i) {
      tokens.push_back({{"index", i},
                        {"segment", segment},
                        {"position", batch.positions[i]},
                        {"id", batch.tokens[i]},
                        {"text", text_of(batch.tokens[i], vocabulary)},
                        {"target", batch.targets[i]},
                        {"counts", batch.targets[i] != kNoTarget}});
    }
  }
  report["tokens"] = std::move(tokens);
  std::printf("%s\n", report.dump().c_str());
}

void print_part(const char* name, const DataStatistics::Part& part, int64_t tokens) {
  std::printf("%-12s %s tokens (%s targets) of %s pieces in %s rows of %s, %.1f %% padding\n", name, with_commas(part.num_tokens).c_str(),
              with_commas(part.num_valid).c_str(), with_commas(part.num_pieces).c_str(), with_commas(part.num_rows).c_str(),
              with_commas(tokens).c_str(), 100 * part.padding);
}

void print_text(const TrainingData& data, const Row& row, const Vocabulary& vocabulary) {
  const DataStatistics& s = data.statistics();
  const TokenBatch& batch = row.batch;
  std::printf("%-12s %s: %s empty, %s without a target, %s split, %s dropped (%s tokens)\n", "documents",
              with_commas(s.num_documents).c_str(), with_commas(s.num_empty).c_str(), with_commas(s.num_unlabelled).c_str(),
              with_commas(s.num_split).c_str(), with_commas(s.num_dropped).c_str(), with_commas(s.num_dropped_tokens).c_str());
  print_part("training", s.training, data.options().tokens);
  if (s.validation.num_rows > 0) print_part("validation", s.validation, data.options().tokens);
  std::printf("%-12s %s\n\n%s: %lld tokens in %lld segments, %lld targets\n", "fingerprint", data.fingerprint().c_str(), row.name.c_str(),
              static_cast<long long>(batch.num_tokens), static_cast<long long>(batch.num_segments),
              static_cast<long long>(batch.num_valid));
  std::printf("   index segment position        id text      target text   counts\n");
  for (int64_t segment = 0; segment < batch.num_segments; ++segment) {
    const auto begin = static_cast<size_t>(batch.segments[static_cast<size_t>(segment)]),
               end = static_cast<size_t>(batch.segments[static_cast<size_t>(segment) + 1]);
    for (size_t i = begin; i < end; ++i) {
      const int32_t target = batch.targets[i];
      const bool counts = target != kNoTarget;
      fmt::print("{:>8} {:>7} {:>8} {:>9} {:<6} {:>9} {:<6} {}\n", i, segment, batch.positions[i], batch.tokens[i],
                 text_of(batch.tokens[i], vocabulary), target, counts ? text_of(target, vocabulary) : "", counts ? "yes" : "no");
    }
  }
  const int64_t padding = data.options().tokens - batch.num_tokens;
  if (padding > 0) fmt::print("{:>8} to {}: padding\n", batch.num_tokens, data.options().tokens - 1);
}

Status show(const DataArguments& arguments) {
  // Without a vocabulary, any id may be looked at and text is bytes.
  GLIM_ASSIGN(const Chosen chosen, choose(arguments, Vocabulary{INT32_MAX, true}));
  GLIM_ASSIGN(const TrainingData data, TrainingData::load(chosen.config, chosen.options, chosen.vocabulary));
  GLIM_ASSIGN(const Row row, find_row(arguments, data));
  if (arguments.json)
    print_json(data, row, chosen.vocabulary);
  else
    print_text(data, row, chosen.vocabulary);
  return ok();
}

void add_data_options(CLI::App& command, DataArguments& arguments) {
  command.add_option("paths", arguments.paths, "one training configuration, or .txt, .jsonl and .tokens files and folders of them")
      ->required()
      ->type_name("CONFIG.toml|PATH...");
  command.add_option("--model", arguments.model, "the model whose vocabulary it is")->type_name("MODEL");
  command.add_option("--vocab", arguments.vocabulary, "the vocabulary without a model: its size, or \"bytes\"")->type_name("N|bytes");
  command.add_option("--ignore-key", arguments.ignored_keys, "a key of JSONL documents that is passed over")->type_name("KEY");
  command.add_flag("--json", arguments.json, "print one JSON object");
}

}  // namespace

void add_data(CLI::App& app, Body& body) {
  CLI::App* data = app.add_subcommand("data", "pack documents, or show what a row contains");
  data->require_subcommand(1);
  data->footer("Example: glim data show train.toml --step 0");
  auto arguments = std::make_shared<DataArguments>();
  CLI::App* packing = data->add_subcommand("pack", "write documents as one file of tokens that is mapped, not parsed");
  add_data_options(*packing, *arguments);
  packing->add_option("-o,--output", arguments->output, "the file to write")->required()->type_name("FILE.tokens");
  packing->footer("Example: glim data pack corpus/ --vocab bytes --output corpus.tokens");
  packing->callback([arguments, &body] { body = [arguments] { return pack(*arguments); }; });

  arguments = std::make_shared<DataArguments>();
  CLI::App* showing = data->add_subcommand("show", "statistics, and one row token by token with what the loss counts");
  add_data_options(*showing, *arguments);
  showing->add_option("--tokens", arguments->tokens, "tokens per row (default: the configuration's, or 512)")
      ->check(CLI::Range(2, 1 << 30));
  showing->add_option("--row", arguments->row, "this row of the first epoch, or of the held-out part")->check(CLI::NonNegativeNumber);
  showing->add_option("--step", arguments->step, "the row of this optimizer step, counted from 0")->check(CLI::NonNegativeNumber);
  showing->add_option("--micro-step", arguments->micro_step, "with --step: its micro-step, counted from 0")->check(CLI::NonNegativeNumber);
  showing->add_flag("--validation", arguments->validation, "a row of the held-out part");
  showing->add_option("--overlong", arguments->overlong, "split or drop documents that are longer than a row")->type_name("split|drop");
  showing->footer("Example: glim data show train.toml --step 3 --micro-step 1; glim data show chats.jsonl --tokens 64 --row 5");
  showing->callback([arguments, &body] { body = [arguments] { return show(*arguments); }; });
}

}  // namespace glim::cli
