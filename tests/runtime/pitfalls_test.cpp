// Mistakes that other implementations made and that only a whole model shows. Those of single ops are in tests/ops.
#include <algorithm>
#include <set>

#include "runtime/trainer.h"
#include "tests/runtime/small_model.h"

namespace glim {
namespace {

constexpr ProgramKind kForward = ProgramKind::kForward, kFirst = ProgramKind::kFirst, kNext = ProgramKind::kNext;
constexpr int32_t kIgnored = -100;
using Inputs = std::map<std::string, std::vector<int32_t>, std::less<>>;

Inputs one_row(int64_t length, uint64_t seed = 1) {
  return {{"tokens", random_tokens(length, 37, seed)},
          {"labels", random_tokens(length, 37, seed + 100)},
          {"row_lengths", {static_cast<int32_t>(length)}}};
}
std::vector<double> logits_of(const ModelSpec& spec, const Inputs& inputs = one_row(16)) {
  const auto length = static_cast<int64_t>(inputs.at("tokens").size());
  return SmallModel(spec, {.tokens = length, .segments = static_cast<int64_t>(inputs.at("row_lengths").size()), .outputs = {"logits"}})
      .run(kForward, inputs)
      .output("logits");
}
ModelSpec edited_spec(const std::string& from, const std::string& to) {
  const ScratchFolder scratch;
  std::string text = read_file(muse_glimmer_file());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  write_file(scratch / "edited.toml", text);
  return small_spec({}, scratch / "edited.toml");
}

// Scale and cap belong to the logits, whoever asks for them: with labels, without, in training, and row by row for generation.
TEST(Logits, AreTheSameWhoeverAsks) {
  const ModelSpec spec = small_spec({"output_multiplier=3.0"});
  Inputs inputs = one_row(16);
  inputs["rows"].resize(16);
  for (int32_t i = 0; i < 16; ++i) inputs["rows"][static_cast<size_t>(i)] = i;
  const std::vector<double> alone = logits_of(spec, inputs);
  EXPECT_EQ(SmallModel(spec, {.outputs = {"loss", "logits"}}).run(kForward, inputs).output("logits"), alone);
  EXPECT_EQ(SmallModel(spec, {.outputs = {"loss", "logits"}, .programs = {kFirst}}).run(kFirst, inputs).output("logits"), alone);
  EXPECT_LT(relative_distance(SmallModel(spec, {.rows = 16, .outputs = {"row_logits"}}).run(kForward, inputs).output("row_logits"), alone),
            1e-14);
  const double largest =
      std::abs(*std::max_element(alone.begin(), alone.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
  EXPECT_LT(largest, 20);
  EXPECT_GT(largest, 10);  // the cap is at work
  EXPECT_GT(relative_distance(logits_of(small_spec({"output_multiplier=1.0"})), alone), 0.1);
  EXPECT_GT(relative_distance(logits_of(small_spec({"output_multiplier=3.0", "final_logit_softcapping=1000.0"})), alone), 0.03);
}

// The loss without logits is the mean over exactly those logits, ignored targets left out.
TEST(Logits, GiveTheLossAndTheAccuracy) {
  const ModelSpec spec = small_spec();
  Inputs inputs = one_row(6);
  const std::vector<double> predictions =
      SmallModel(spec, {.tokens = 6, .outputs = {"row_prediction"}}).run(kForward, inputs).output("row_prediction");
  // labels [-100, right, right, -100, wrong, right]: the target of token i is label i + 1.
  const auto predicted = [&](size_t i) { return static_cast<int32_t>(predictions[i]); };
  inputs["labels"] = {kIgnored, predicted(0), predicted(1), kIgnored, (predicted(3) + 1) % 37, predicted(4)};
  SmallModel fused(spec, {.tokens = 6});
  fused.run(kForward, inputs);
  EXPECT_EQ(fused.scalar("num_valid"), 4);
  EXPECT_EQ(fused.scalar("num_correct"), 3);
  EXPECT_EQ(fused.scalar("token_accuracy"), 0.75);
  const std::vector<double> logits = logits_of(spec, inputs);
  double loss = 0;
  for (size_t i = 0; i < 5; ++i) {
    const int32_t target = inputs["labels"][i + 1];
    if (target == kIgnored) continue;
    double sum = 0;
    for (size_t v = 0; v < 37; ++v) sum += std::exp(logits[i * 37 + v]);
    loss += (std::log(sum) - logits[i * 37 + static_cast<size_t>(target)]) / 4;
  }
  EXPECT_NEAR(fused.scalar("loss"), loss, 1e-12);
}

// Four samples with 8, 1, 5 and 2 valid targets: one micro-step of four rows is four micro-steps of one row.
TEST(Accumulation, EqualsOneLargeBatch) {
  const ModelSpec spec = small_spec();
  constexpr int64_t kLength = 10;
  const int32_t num_valid[] = {8, 1, 5, 2};
  Inputs whole, parts[4];
  for (size_t s = 0; s < 4; ++s) {
    parts[s] = one_row(kLength, 10 + s);
    std::vector<int32_t>& labels = parts[s]["labels"];
    for (size_t i = 0; i < labels.size(); ++i) {  // the first label is nobody's target; valid ones are spread, ignored ones lie between
      if (static_cast<int32_t>(i * 7 % 9) >= num_valid[s] && i != 0) labels[i] = kIgnored;
    }
    for (const char* name : {"tokens", "labels", "row_lengths"})
      whole[name].insert(whole[name].end(), parts[s][name].begin(), parts[s][name].end());
  }
  SmallModel batch(spec, {.tokens = 4 * kLength, .segments = 4, .programs = {kFirst}});
  batch.run(kFirst, whole);
  ASSERT_EQ(batch.scalar("num_valid"), 16);
  const auto expected = batch.gradients();

  const SmallOptions options{.tokens = kLength, .programs = {kFirst, kNext}, .denominator = true};
  SmallModel steps(spec, options), means(spec, options);
  double loss = 0, num_correct = 0, mean_loss = 0;
  for (size_t s = 0; s < 4; ++s) {
    const ProgramKind kind = s == 0 ? kFirst : kNext;
    ASSERT_TRUE(steps.model().set_scalar("denominator", 16));
    steps.run(kind, parts[s]);
    EXPECT_EQ(steps.scalar("num_valid"), num_valid[s]);
    loss += steps.scalar("loss");
    num_correct += steps.scalar("num_correct");
    ASSERT_TRUE(means.model().set_scalar("denominator", 4.0 * num_valid[s]));  // the mistake: every micro-step weighs the same
    mean_loss += means.run(kind, parts[s]).scalar("loss");
  }
  EXPECT_NEAR(loss, batch.scalar("loss"), 1e-12);
  EXPECT_EQ(num_correct, batch.scalar("num_correct"));
  EXPECT_LT(worst_distance(steps.gradients(), expected), 1e-12);
  EXPECT_GT(std::abs(mean_loss - loss), 1e-3);
  EXPECT_GT(worst_distance(means.gradients(), expected), 1e-3);
}

// A micro-step without any target adds nothing: zero, not NaN.
TEST(Accumulation, AMicroStepWithoutTargetsIsZero) {
  Inputs inputs = one_row(10), empty = inputs;
  empty["labels"].assign(10, kIgnored);
  SmallModel model(small_spec(), {.tokens = 10, .programs = {kFirst, kNext}, .denominator = true});
  ASSERT_TRUE(model.model().set_scalar("denominator", 9));
  const auto expected = model.run(kFirst, inputs).gradients();
  model.run(kNext, empty);
  EXPECT_EQ(model.scalar("loss"), 0);
  EXPECT_EQ(model.gradients(), expected);
  const auto all_zero = [](const std::map<std::string, std::vector<double>>& gradients) {
    return std::all_of(gradients.begin(), gradients.end(), [](const auto& entry) {
      return std::all_of(entry.second.begin(), entry.second.end(), [](double g) { return g == 0; });
    });
  };
  EXPECT_FALSE(all_zero(expected));
  for (const double denominator : {9.0, 0.0}) {
    ASSERT_TRUE(model.model().set_scalar("denominator", denominator));
    model.run(kFirst, empty);
    EXPECT_EQ(model.scalar("loss"), 0);
    EXPECT_EQ(model.scalar("token_accuracy"), 0);
    EXPECT_TRUE(all_zero(model.gradients())) << denominator;
  }
  SmallModel own_mean(small_spec(), {.tokens = 10, .programs = {kFirst}});
  EXPECT_EQ(own_mean.run(kFirst, empty).scalar("loss"), 0);
  EXPECT_TRUE(all_zero(own_mean.gradients()));
}

// Layer norms multiply by 1 + w, the final norm by w; their values cannot tell them apart.
TEST(Norms, ConventionsAreNotInterchangeable) {
  const std::vector<double> right = logits_of(small_spec());
  for (const char* norm : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
    const std::string eps = std::string(norm).starts_with("post") ? "post_norm_eps" : "rms_norm_eps";
    const std::string weight = std::string("weight = \"") + norm + "\", eps = \"" + eps + "\"";
    EXPECT_GT(relative_distance(logits_of(edited_spec(weight + ", weight_offset = 1", weight)), right), 1e-2) << norm;
  }
  EXPECT_GT(relative_distance(logits_of(edited_spec("weight = \"norm\", eps = \"rms_norm_eps\"",
                                                    "weight = \"norm\", eps = \"rms_norm_eps\", weight_offset = 1")),
                              right),
            1e-2);
}

// A norm after the product removes any scale of W_q; the factor after the norm stays.
TEST(Attention, AScaleOfTheQueryWeightDoesNothing) {
  const ModelSpec spec = small_spec({"rms_norm_eps=1e-12"});
  const std::vector<double> expected = logits_of(spec);
  SmallModel scaled(spec, {.outputs = {"logits"}});
  scaled.scale_layers("q_proj", 7);
  EXPECT_LT(relative_distance(scaled.run(kForward, one_row(16)).output("logits"), expected), 1e-6);
  scaled.scale_layers("k_proj", 0.2);
  EXPECT_LT(relative_distance(scaled.run(kForward, one_row(16)).output("logits"), expected), 1e-6);
  scaled.scale_layers("attention_gate_proj", 1.5);  // no norm stands behind the gate
  EXPECT_GT(relative_distance(scaled.run(kForward, one_row(16)).output("logits"), expected), 1e-2);
  EXPECT_GT(relative_distance(logits_of(small_spec({"rms_norm_eps=1e-12", "qk_scale_factor=1.0"})), expected), 1e-2);
}

// Which layers have a window and which rotate are two independent arrays of a config.json.
TEST(Attention, LayerArraysAreIndependent) {
  const ScratchFolder scratch;
  std::string config = read_file(GLIM_SOURCE_DIR "/tests/golden/text_tiny/config.json");
  const auto replace = [&](const std::string& key, const std::string& array) {
    const size_t begin = config.find('[', config.find("\"" + key + "\"")), end = config.find(']', begin);
    config.replace(begin, end + 1 - begin, array);
  };
  replace("layer_rope_theta", "[10000.0, 0, 10000.0, 0]");
  replace("layer_types", R"(["full_attention", "sliding_attention", "sliding_attention", "full_attention"])");
  write_file(scratch / "config.json", config);
  const Result<ModelSource> source = open_model(scratch / "config.json", {}, "");
  ASSERT_TRUE(source) << source.error().to_string();
  const std::string numbers =
      "[dims]\nvocab = 320\nhidden = 48\nfeed_forward = 96\nnum_layers = 4\nnum_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nsliding_window "
      "= 8\n"
      "[constants]\nrope_theta = 10000.0\noutput_multiplier = 0.5773502691896258\npadding_index = 0\n";
  const auto by_hand = [&](const std::string& pattern) {
    std::filesystem::copy_file(muse_glimmer_file(), scratch / "muse_glimmer.toml", std::filesystem::copy_options::overwrite_existing);
    write_file(scratch / "by_hand.toml", "extends = \"muse_glimmer.toml\"\n" + numbers + "[layers.decoder]\npattern = " + pattern + "\n");
    Result<ModelSpec> spec = load_spec(scratch / "by_hand.toml");
    EXPECT_TRUE(spec) << spec.error().to_string();
    return std::move(*spec);
  };
  const Inputs inputs = one_row(24);
  const std::vector<double> logits = logits_of(source->spec, inputs);
  EXPECT_EQ(
      logits_of(
          by_hand("{ anchor = \"each\", window = [0, \"sliding_window\", \"sliding_window\", 0], rope = [true, false, true, false] }"),
          inputs),
      logits);
  for (const char* other :
       {"window = [0, 8, 8, 0], rope = [false, true, true, false]", "window = [8, 0, 8, 0], rope = [true, false, true, false]",
        "window = [0, 8, 8, 0], rope = [true, true, true, false]"}) {
    EXPECT_GT(relative_distance(logits_of(by_hand(std::string("{ anchor = \"each\", ") + other + " }"), inputs), logits), 1e-3) << other;
  }
}

// A gate of zero weights halves the branch before o_proj, and only before it.
TEST(Attention, AZeroGateHalvesTheBranch) {
  const auto with_zero_gate = [](const ModelSpec& spec) {
    SmallModel model(spec, {.outputs = {"logits"}});
    model.scale_layers("attention_gate_proj", 0);
    return model.run(kForward, one_row(16)).output("logits");
  };
  const std::string gated = "{ out = \"gated\", op = \"sigmoid_gate\", in = \"attended\", gate = \"gate\" }";
  const ModelSpec halved = edited_spec(gated, "{ out = \"gated\", op = \"scale\", in = \"attended\", factor = 0.5 }"),
                  whole = edited_spec(gated, "{ out = \"gated\", op = \"scale\", in = \"attended\", factor = 1 }");
  // A norm follows o_proj and hides most of a factor, so its eps is made large enough to see it.
  const auto visible = [](ModelSpec spec) {
    EXPECT_TRUE(set_value(spec, "post_norm_eps=1.0"));
    return spec;
  };
  const std::vector<double> expected = with_zero_gate(visible(small_spec()));
  EXPECT_LT(relative_distance(with_zero_gate(visible(halved)), expected), 1e-13);
  EXPECT_GT(relative_distance(with_zero_gate(visible(whole)), expected), 1e-3);
}

TEST(Embedding, AScaleOfTheTableDoesNothing) {
  const ModelSpec spec = small_spec({"rms_norm_eps=1e-12"});
  SmallModel model(spec, {.outputs = {"logits"}});
  model.change("embed.table", [](size_t, double value) { return 10 * value; });
  EXPECT_LT(relative_distance(model.run(kForward, one_row(16)).output("logits"), logits_of(spec)), 1e-9);
}

// A branch of magnitude 1e-4 has a mean square of 1e-8: the eps behind it decides its gain.
TEST(Norms, PostNormEpsDecidesSmallBranches) {
  const auto tiny_branches = [](const char* eps, double factor, ProgramKind kind) {
    SmallModel model(small_spec({eps}), {.outputs = {"loss", "logits"}, .programs = {kind}});
    for (const char* name : {"o_proj", "down_proj"}) model.scale_layers(name, factor);
    model.run(kind, one_row(16));
    return model;
  };
  const std::vector<double> released = tiny_branches("post_norm_eps=1e-8", 1e-4, kForward).output("logits");
  EXPECT_GT(relative_distance(tiny_branches("post_norm_eps=1e-5", 1e-4, kForward).output("logits"), released), 0.1);
  SmallModel zero = tiny_branches("post_norm_eps=1e-8", 0, kFirst);
  EXPECT_TRUE(std::isfinite(zero.scalar("loss")));
  for (const auto& [name, gradient] : zero.gradients())
    EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](double g) { return std::isfinite(g); })) << name;
}

// Documents of 5, 3 and 9 tokens in one row, window 4: nothing of the first reaches the others, on full and sliding layers alike.
TEST(Packing, DocumentsDoNotTouchEachOther) {
  const ModelSpec spec = small_spec();
  Inputs inputs = one_row(17);
  inputs["row_lengths"] = {5, 3, 9};
  std::fill_n(inputs["labels"].begin(), 5, kIgnored);  // so that gradients come from documents 2 and 3 alone
  const SmallOptions options{.tokens = 17, .segments = 3, .outputs = {"loss", "logits"}, .programs = {kFirst}};
  SmallModel model(spec, options);
  model.run(kFirst, inputs);
  const std::vector<double> logits = model.output("logits");
  const auto gradients = model.gradients();
  const auto same_rows = [&](const std::vector<double>& other, size_t begin, size_t end) {
    return std::equal(logits.begin() + static_cast<ptrdiff_t>(begin * 37), logits.begin() + static_cast<ptrdiff_t>(end * 37),
                      other.begin() + static_cast<ptrdiff_t>(begin * 37));
  };
  for (const size_t token : {size_t{0}, size_t{2}, size_t{4}}) {
    Inputs moved = inputs;
    moved["tokens"][token] = (moved["tokens"][token] + 5) % 37;
    model.run(kFirst, moved);
    const std::vector<double> other = model.output("logits");
    EXPECT_TRUE(same_rows(other, 5, 17)) << token;
    EXPECT_TRUE(same_rows(other, 0, token)) << token;  // causal
    EXPECT_FALSE(same_rows(other, token, 5)) << token;
    EXPECT_EQ(model.gradients(), gradients) << token;
  }
  Inputs moved = inputs;
  moved["tokens"][6] = (moved["tokens"][6] + 5) % 37;  // the middle document
  const std::vector<double> other = model.run(kFirst, moved).output("logits");
  EXPECT_TRUE(same_rows(other, 0, 6) && same_rows(other, 8, 17));
  EXPECT_FALSE(same_rows(other, 6, 8));
  // And each document is what it is alone.
  size_t begin = 0;
  for (const int32_t length : {5, 3, 9}) {
    Inputs alone;
    alone["tokens"] = {inputs["tokens"].begin() + static_cast<ptrdiff_t>(begin),
                       inputs["tokens"].begin() + static_cast<ptrdiff_t>(begin) + length};
    alone["labels"].assign(static_cast<size_t>(length), kIgnored);
    alone["row_lengths"] = {length};
    const auto from = logits.begin() + static_cast<ptrdiff_t>(begin * 37);
    EXPECT_LT(relative_distance(logits_of(spec, alone), {from, from + length * 37}), 1e-13);
    begin += static_cast<size_t>(length);
  }
  // Without the boundaries the same perturbation does reach them.
  Inputs joined = inputs, joined_moved = inputs;
  joined["row_lengths"] = joined_moved["row_lengths"] = {17};
  joined_moved["tokens"][4] = (joined_moved["tokens"][4] + 5) % 37;
  const std::vector<double> a = logits_of(spec, joined), b = logits_of(spec, joined_moved);
  EXPECT_FALSE(std::equal(a.begin() + 5 * 37, a.end(), b.begin() + 5 * 37));
}

// Two different gates per layer share a name in checkpoints: attention's, as wide as the heads, and the feed-forward's.
TEST(Names, TheTwoGatesAreTwoParameters) {
  const Result<std::vector<ModelParameter>> parameters = list_parameters(small_spec());
  ASSERT_TRUE(parameters);
  std::map<std::string, std::vector<std::string>> gates;  // layer -> HF names
  std::set<std::string> names, folded;
  for (const ModelParameter& parameter : *parameters) {
    EXPECT_TRUE(names.insert(parameter.hf_name).second) << parameter.hf_name;
    if (parameter.hf_name.find("gate_proj.weight") != std::string::npos) gates[parameter.instance].push_back(parameter.hf_name);
    if (parameter.instance.starts_with("decoder.") && parameter.hf_name.find("layernorm") != std::string::npos)
      folded.insert(parameter.hf_name);
    if (parameter.name.ends_with(".attention_gate_proj")) {
      EXPECT_TRUE(parameter.hf_name.ends_with(".self_attn.gate_proj.weight"));
      EXPECT_EQ(parameter.type.shape, (Shape{32, 24}));
    }
    if (parameter.name.ends_with(".gate_proj")) {
      EXPECT_TRUE(parameter.hf_name.ends_with(".mlp.gate_proj.weight"));
      EXPECT_EQ(parameter.type.shape, (Shape{40, 24}));
    }
  }
  ASSERT_EQ(gates.size(), 4U);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string prefix = "model.language_model.layers." + std::to_string(layer);
    EXPECT_EQ(gates["decoder." + std::to_string(layer)],
              (std::vector<std::string>{prefix + ".self_attn.gate_proj.weight", prefix + ".mlp.gate_proj.weight"}));
  }
  EXPECT_EQ(folded.size(), 4U * 4U);  // centered norms; the final one is another kind
}

double product_flops(const Graph& graph, bool& counts_embedding) {
  double flops = 0;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    const std::string_view op = graph.def({n}).name;
    if (op == "linear" || op == "matmul" || op == "attention" || op.starts_with("linear_cross_entropy")) flops += graph.cost({n}).flops;
    if (op == "embedding" && graph.cost({n}).flops != 0) counts_embedding = true;
  }
  return flops;
}

// Closed form of the products of a forward pass: windows counted as windows, the embedding as no product at all.
TEST(Flops, ForwardPassHasItsClosedForm) {
  const double T = 32, D = 24, F = 40, V = 37, q = 32, kv = 16, w = 4;
  CompileOptions options;
  options.runtime_dims = {{"T", 32}, {"G", 1}, {"R", 1}};
  BuiltModel facts{Graph(builtin_ops()), {}, {}, {}};
  const Result<Graph> forward = lower(small_spec(), builtin_ops(), options, kForward, facts),
                      first = lower(small_spec(), builtin_ops(), options, kFirst, facts);
  ASSERT_TRUE(forward && first);
  const double pairs_full = T * (T + 1) / 2, pairs_window = w * (w + 1) / 2 + (T - w) * w;
  const double linears = 4 * 2 * T * D * (q + 2 * kv + q + q + 3 * F), head = 2 * T * D * V;
  const double attention = 4 * q * (3 * pairs_window + pairs_full);
  bool counts_embedding = false;
  EXPECT_DOUBLE_EQ(product_flops(*forward, counts_embedding), linears + head + attention);
  EXPECT_FALSE(counts_embedding);
  // What is not a product is little, but there.
  EXPECT_GT(count_flops(*forward), product_flops(*forward, counts_embedding));
  EXPECT_LT(count_flops(*forward), 1.15 * product_flops(*forward, counts_embedding));
  // Backward: two products for each one; the scores once more, and four products instead of two in attention.
  double vjp = 0;
  for (uint32_t n = 0; n < first->num_nodes(); ++n) {
    if (first->def({n}).name == "attention_vjp") vjp += first->cost({n}).flops;
  }
  EXPECT_DOUBLE_EQ(vjp, 2.5 * attention);
  EXPECT_DOUBLE_EQ(product_flops(*first, counts_embedding), 3 * (linears + head) + attention);
}

// Nothing in a training step grows with the square of the tokens: not on sliding layers, not on full ones.
TEST(Memory, GrowsWithTheTokensOnly) {
  const auto bytes = [](int64_t tokens) {
    CompileOptions options;
    options.runtime_dims = {{"T", tokens}, {"G", 1}, {"R", 1}};
    options.programs = {kFirst};
    const Result<CompiledModel> model = compile(small_spec({"sliding_window=512"}), builtin_ops(), options);
    EXPECT_TRUE(model);
    double total = 0;
    for (const size_t arena : model->programs[0]->plan.arena_bytes) total += static_cast<double>(arena);
    return total;
  };
  const double at_0 = bytes(1024), at_1 = bytes(2048), at_2 = bytes(4096);
  EXPECT_GT(at_1, at_0);
  EXPECT_NEAR((at_2 - at_1) / (at_1 - at_0), 2, 0.1);
}

}  // namespace
}  // namespace glim
