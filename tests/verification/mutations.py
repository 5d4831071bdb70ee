"""Mutations that `trigraph verify` must detect (see test_mutations.py)."""

from trigraph import table

# Family -> file -> description -> text that occurs once in the file, with the original and the mutated part.
GNO = {
    "fortran/reference/gno.fypp": {
        "bias left out": "    kernel(i, e) = ⟦b_v(i) → 0⟧",
        "missing sum of the bias": "grad_b_v(i) = ⟦grad_b_v(i) + grad_kernel → grad_kernel⟧(i, e)",
        "wrong offset of b_v": "off_bv = off_v + f*hidden⟦ →  - 1⟧",
        "kernel for its cotangent": "K}$(f_out, f_in, ⟦gg_kernel → kernel⟧(:, e), grad_message(:, i),",
    },
    "pyref/gno.py": {
        ">= for > in relu'": "mask = ~(xi.real @ U.real.T + b_u.real ⟦<= → <⟧ 0)",
        "sign of a second-order term": "coords=lambda: s @ U_dot ⟦+ → -⟧ s_dot @ U,",
        "transposed kernel": "return kernel.reshape(len(kernel), ⟦f_in, f_out → f_out, f_in).swapaxes(1, 2⟧)",
    },
    "pyref/__init__.py": {
        "one step for cotangents of any size": "shift, moved = ⟦STEP + RANGE * power → STEP⟧, dict(real)",
    },
    "pyref/common.py": {"shared rows overwrite": "⟦np.add.at(out, index, rows) → out[index] = rows⟧"},
    "fortran/fast/gno.fypp": {
        ">= for > in relu'": "s(:plan%hidden, q) = merge(0.0_${K}$, s(:plan%hidden, q), a(:plan%hidden, q) ⟦<= → <⟧ 0)",
        "second-order term replaces the first": "hidden, ut_dot, work%s, plan%ls, coords, plan%d, ⟦.true. → .false.⟧)",
    },
    "gpu/kernels/gno_network.cuh": {">= for > in relu'": "return !(z ⟦<= → <⟧ T(0));"},
    "gpu/kernels/gno_message.cuh": {
        "edges after the first sixteen replace them": "                        fresh = ⟦false → true⟧;\n",
        "the last slab loses b_v": "const int rows = min(S::units, ⟦last_row → network.hidden⟧ - k0);",
    },
    "gpu/kernels/gno_grad_edges.cuh": {
        "columns of Q exchanged": "S::features + (group ⟦^ (k + x) % 8 → ⟧) * 4, right[x]);",
        "a slab replaces the earlier ones": "const bool fresh = !add_coords && ⟦k0 == 0 && f0 → f0⟧ == 0;",
    },
    "gpu/kernels/gno.cu": {
        "sign of g h^T": "sum[r].add(⟦left → -left⟧[o[r]] * right[f[r]], e);",
        "position for row": "matrices + (long long)(⟦edge_ids[p] → p⟧) * num_y * num_x",
    },
    "fortran/fast/products.fypp": {
        "chunks of a hub added one after the other": "integer, parameter :: leaf = ⟦128 → 2**30⟧",
        "a level of a hub's sum is lost": "if (.not. btest(count, l - 1)⟦ →  .or. l == 2⟧) cycle",
    },
    "fortran/fast/procedures.inc": {
        "a sum over waves takes all but the last": "do wave = 0, ⟦plan%waves - 1 → max(plan%waves - 2, 0)⟧\n",
        "a sum over waves takes the first alone": "do wave = 0, ⟦plan%waves - 1 → 0⟧\n",
    },
    "gpu/sums.py": {
        "a sum over blocks takes the first alone": "    for first in range(0, ⟦count → min(count, step)⟧, step):\n",
        "rows wider than a block": "    lane_bits = min(ceil_log2(width), ⟦7 → 8⟧)\n    arguments = {",
    },
    "src/trigraph/backends/third_gno.py": {
        "the first layer of a direction selects": 'fields({"params": ⟦join_layers(params, x["params"]) → x["params"]⟧}',
        "a replaced layer is differentiated": 'zero_second_layer(direction)⟦, "second" → ⟧)',
        "a replaced layer stays in the direction": "of_params is None else ⟦join_layers(of_params, None) → of_params⟧}",
        "features stay in the direction along z": '(a, {**zero_second_layer(c)⟦, "features": None → ⟧})',
        "a product of directions is left out": "for s, t in ((a, c),⟦ (c, a) → ⟧)",
        "NaN in a direction of an inactive unit": "finite = [⟦xp.where(xp.isfinite(x), x, 0) → x⟧ for",
    },
    "src/trigraph/torch/plain.py": {
        "a product with the values of parts": "others = [n for n in PARTS if not k & n⟦ → and not (k and n)⟧ and",
    },
    "gpu/gno.py": {
        "rows after the last position keep what they were": "⟦        sums.zero_unused_rows(graph, to_coords)\n → ⟧",
    },
}
DIMENET = {
    "src/trigraph/torch/plain.py": {
        "a Bessel function's curvature": "lambda j, x: (l * ⟦(l - 1) → (l + 1)⟧ / x**2 - 1) * j",
    },
    "src/trigraph/torch/jets.py": {
        "curvature of a root": "lambda y, x: 0.5 / y, lambda y, x: ⟦-0.25 → -0.5⟧ / (x * y)",
    },
    "fortran/reference/dimenet.fypp": {
        "k == i not left out": "src(f) == ⟦dst → src⟧(e)) .or.",
        "gradient of the direction along itself": "⟦(grad_unit(l, e) - along * unit_e(l) → grad_unit(l, e⟧) / len",
        "second derivative of P_l dropped": "d_y(l) * ⟦grad_y + d2_y(l) * cosine_dot * grad_y_dot → grad_y⟧",
    },
    "pyref/dimenet.py": {
        "prefactor of l": "np.sqrt((2 * np.arange(num_spherical) + ⟦1 → 3⟧) / (4 * np.pi))",
        "k == i compares destinations": "keep = ⟦graph.src → graph.dst⟧[f] != graph.dst[e]",
        "sign of a cotangent of directions": "unit[f], n) ⟦+ → -⟧ scatter_sum(f, grad_cosine_dot * unit[e], n)",
        "transposed W1": "reshape(⟦num_spherical, num_radial, -1 → num_radial, num_spherical, -1).swapaxes(0, 1⟧),",
        "mixed derivative without a term": "mixed = env[1] * x * c ⟦+ env[0] * c - → -⟧ env[0] * freq * x * s",
    },
    "fortran/fast/dimenet_kernels.inc": {"left-out edges stay in the sum": "        out = ⟦out - s → out⟧\n"},
    "fortran/fast/dimenet_node.inc": {
        "second-order term replaces the first": "work%out%ld, work%z, work%out%s_dot, ⟦.true. → .false.⟧, &\n",
    },
    "fortran/fast/dimenet_harmonics.fypp": {
        "norm of the harmonics of order zero": "merge(⟦1, 2 → 2, 1⟧, mm == 0)",
    },
    "fortran/fast/dimenet.fypp": {
        "NaN of an edge in no triplet": "⟦plan%want_sbf_rad → .false.⟧) call clear_columns_${K}$(block%num_unused,",
    },
    "gpu/kernels/dimenet_harmonics.cuh": {
        "weight of the harmonics of order zero": "double weight = ⟦m > 0 ? 2 : 1 → 2⟧;",
    },
    "gpu/kernels/dimenet_in_edges.cuh": {
        "sign of the left-out edges": "add_pair_gradients(e, ⟦use_state ? T(-1) : T → T⟧(1), edge"
    },
    "gpu/kernels/dimenet.cu": {
        "weights not transposed": "? down[⟦c * n_mid + m → m * num_columns + c⟧] : T(0);",
    },
    "gpu/kernels/dimenet_first_weights.cuh": {
        "NaN of an edge in no triplet": "first + k * GROUPS >= num_edges⟦ || alone[e] != 0 → ⟧;",
        "rows of other edges": "return first + k⟦ * WARP_GROUPS → ⟧; }",
    },
    "gpu/kernels/dimenet_out_edges.cuh": {"left-out edges are added": "value[i][w] ⟦-= → +=⟧ (left >> (part + i) & 1)"},
    "gpu/kernels/dimenet_pull.cuh": {
        "harmonics of one warp": "⟦(sums[i] + sums[SIZE + i]) → sums[i]⟧ + (sums[2 * SIZE + i]",
        "second derivative of P_l dropped": "by_cosine += ⟦legendre.d2 * cosine_dot * feature → T(0)⟧;",
    },
    "gpu/kernels/hyper_dual.cuh": {
        "a product without one of its mixed terms": "+ x.along_a * y.along_c⟦ + x.along_c * y.along_a → ⟧ +",
    },
    "gpu/kernels/dimenet_third.cuh": {
        "a Legendre polynomial's derivative": "d_next = ⟦d_below + T → T⟧(2 * n + 1) * p;",
        "the last of the edges that are left out": "f < left_start[e] || f >= left_stop[e]⟦ →  - 1⟧;",
        "directions of other edges": "pull[k] = g * sums.get_sum(⟦k + 1 → 3 - k⟧);",
        "NaN of an edge in no triplet": "end = ⟦alone[e] ? 0 : n_emb → n_emb⟧;",
    },
    "gpu/kernels/dimenet_radial_third.cuh": {
        "gradients of gg_freq and of freq exchanged": "of_gg_freq[threadIdx.x] = by_freq.⟦along_c → both⟧;",
    },
    "fortran/fast/dimenet_radial.fypp": {
        "a Bessel function's recurrence where it cancels": "if (y(i) < ${l}$⟦ →  - 1⟧) j(i) = power*p",
        "distances of other edges": "edges%x(e) = real(args%dist(edges%edge(⟦e → n + 1 - e⟧)), dp)",
    },
    "fortran/fast/dimenet_radial_third.inc": {
        "gradients of gg_freq and of freq exchanged": "[grad_freq%⟦along_c, grad_freq%both → both, grad_freq%along_c⟧]",
        "cotangents of bwd2's gradients are left out": "0.0_${K}$, ⟦ggg_grad_rbf(k, before + i) → 0.0_${K}$⟧)\n",
        "steps beyond the first": "call sum_columns_dp(2*num_radial, ⟦steps → min(steps, 1)⟧, sums(:, 1:), sums)",
        "edges beyond the cutoff": "if (.not. distances(i) ⟦>= 1 → > 2⟧) cycle",
    },
    "fortran/fast/dimenet_third.fypp": {
        "a slot without its last chunk": "(size(work%grad_k), ⟦work%grad_k → work%levels⟧, grad_k(1, slot))",
        "W1 without the factor of P_l": "parts = ⟦angular_norm(l)*parts → parts⟧\n",
        "edges that are left out": "(exclude == exclude_node) work%high(i) = int(⟦reverse_stop → reverse_start⟧(e)",
        "gradient of the direction along itself": "g = inverse*(g - (⟦direction(1)*g(1) +  → ⟧direction(2)*g(2)",
    },
    "fortran/fast/dimenet_third_parts.inc": {
        "a chunk of edges replaces those before": "d) = ⟦grad(at + i0 + i, j, d) + part(i, j) → part(i, j)⟧\n",
        "a Legendre polynomial's derivative": "d_p = ⟦d_p + real(2*l - 1, dp)*last → real(2*l - 1, dp)*last⟧\n",
        "derivative of the harmonics": "call add_jet_products(lanes, q(1, 0, l, ⟦m + 1 → m⟧), grad_s, a1)",
        "the curvature of a length": "⟦0.75_dp → 0.5_dp⟧/(square*square*sqrt(square)))",
    },
    "fortran/fast/dimenet_third_node.inc": {
        "steps after the first": "do e = 0, ⟦n_out - 1 → min(n_out, n) - 1⟧, n\n",
        "edges that are left out of a linear sum": "merge(⟦-1 → 0⟧, 1, linear)",
        "a part of a linear sum over out-edges": "first_s = [0, 0, 0, ⟦2 → 1⟧, 0]",
        "NaN of edges that are left out": "⟦.not. (sizes < 1e200_dp .and. directions < 1e10_dp) → .false.⟧) then",
    },
    "fortran/fast/jets.inc": {
        "a product without one of its mixed terms": "+ 0) + x%along_a*y%along_c)⟦ + x%along_c*y%along_a → ⟧)",
        "curvature of a function of jets": "d2_f*(x%along_a*⟦x%along_c → x%along_a⟧))",
    },
    "fortran/fast/dimenet_block.inc": {
        "other images that are left out do not turn": "  if (⟦.not. plan%complete → plan%complete⟧) return\n        do",
    },
}
GAT = {
    "fortran/reference/dual.f90": {
        "sign of a quotient's derivative": "z%d = (x%d ⟦- → +⟧ times(z%v, y%d)) / y%v",
        "a product is differentiated in one factor": "z = dual(x%v * y%v, x%d * y%v⟦ + x%v * y%d → ⟧)",
    },
    "src/trigraph/torch/plain.py": {
        "softmax's second derivative": "curved = _subtract_weighted_mean(alpha, first * second, index, num)⟦ →  * 0⟧\n",
        "the first cotangents alone": "((seeds.get(n), y.parts[1]), (all_arrays[n], ⟦y.parts[3] → y.parts[2]⟧))",
    },
    "src/trigraph/torch/jets.py": {
        "curvature of a function of jets": "curved = derivatives[1](y, x0) * ⟦second[0] → second[1]⟧ * second[1]",
    },
    "fortran/reference/gat.fypp": {
        "sign of the activation's curvature": "& ⟦+ → -⟧ multiply_by_curvature_${K}$(activation, score(p), times(",
        "cotangent of the weights dropped": "a(c, k) * grad_score(p)⟦ + a_dot(c, k) * grad_score_dot(p) → ⟧",
    },
    "pyref/gat.py": {
        "second order without the softmax's own change": "t = (g * x_dot[0]).sum(2)⟦ + gamma * delta → ⟧",
        "sign of a second-order term": "rows[0] ⟦+= → -=⟧ alpha_dot[:, :, None] * g",
    },
    "fortran/fast/gat_steps.inc": {
        "heads summed, not averaged": "fields(:, 1, :work%n) = fields(:, 1, :work%n)⟦/plan%num_heads → ⟧",
        "the mean of t is left out": "h*num_sums, work%sums(1, ⟦mean_t → mean_u⟧, 1), h, work%grad_logit)",
    },
    "fortran/fast/gat_third.fypp": {
        "curvature of tanh": "f(3) = f(1)*(⟦4 → 2⟧ - 6*f(1))",
        "the softmax's second derivative": "logit(q)%both = logit(q)%both⟦ - total%both → ⟧",
        "the mean changes with alpha": "u(q) = logit(q)*⟦(u(q) - total) → u(q)⟧",
        "the change of a weight times a source": "scores(h, i)%both = scores(h, i)%both⟦ + direction_terms%along_a → ⟧",
        "a chunk of positions is left out": "                    sums(h) = ⟦sums(h) + part → part⟧",
        "one head's share": "if (concat_heads == 0) weight = ⟦(1.0_dp/num_heads)*weight → weight⟧",
        "weights of edges": "edge_scores(h, int(⟦edge_ids(p) → p - 1⟧) + 1)",
    },
    "fortran/fast/third_rows.inc": {
        "cotangents of bwd2's gradients are left out": "along_c(c) = along_c(c)⟦ + w%value*g_c(c) → ⟧ + w%along_c*g(c)",
        "the last of a row": "        do i = 1, n - c⟦ →  - 1⟧\n",
    },
    "gpu/kernels/gat.cu": {
        "heads after those of the first lanes are left out": "(concat ? block % tiles + 1 : ⟦tiles → 1⟧)",
        "columns after those of the first lanes": "n * (⟦(chunk << lanes.column_bits) → 0⟧ + lanes.of_head().column())",
        "largest score of a lane, not of a row": "⟦largest = lanes.max_over_slots(largest); → ⟧",
    },
    "gpu/kernels/gat_backward.cuh": {
        "second order without the mean": "(terms.score, terms.alpha * ⟦(terms.t() - means.t) → terms.t()⟧) +",
    },
    "fortran/fast/row_math.fypp": {
        "the last chunk of a sum replaces it": "            total = ⟦total + s → s⟧\n",
        "sign within tanh": "p = power*p ⟦+ → -⟧ (power - 1)",
        "scores given back of more than eight heads": "'x(h, :) = y(:n, ⟦h → min(h, 8)⟧)'",
    },
    "fortran/fast/rows.c.fypp": {
        "the mean of heads that are whole vectors": "at[v] = ⟦(f + v * ${N}$) % ldx → f + v * ${N}$⟧;",
    },
    "fortran/fast/gat_sums.inc": {
        "the output of several parts is left out": "mean_u .or. ⟦.not. plan%want_output → plan%want_output⟧) return",
        "the output of several parts where it is not asked for": "⟦mean_u .or. .not. plan%want_output → mean_u⟧)",
        "parts of a long row sum nothing again": "        if (first ⟦<= → <⟧ total) call sum_exponentials",
    },
    "gpu/gat.py": {
        "a long edge row takes its first piece": "⟦self._reduce_long_rows(rows, target.overflow, target.out) → pass⟧",
        "long row's scores": "⟦sums.sum_long_row_parts(self.kernels, rows, target.sums_overflow, target.sums) → pass⟧",
    },
}
WEIGHTED = {
    "fortran/reference/weighted.fypp": {"sign of the change": "if (is_weighted_mean) w_dot = w_dot ⟦- → +⟧ w * rho"},
    "pyref/weighted.py": {
        "not centred": "out = ⟦(forward.output_embedding if output_embedding is None else output_embedding)[i] → 0⟧",
        "location within the row": "location[i] = ⟦start + pick → pick⟧(messages[start:stop], axis=0)",
        "weights where there are none": "    weighted = ⟦edge_weight is not None → True⟧\n    centred",
        "number before NaN in min": "⟦np.argmin → (lambda x, axis: np.argmin(np.where(np.isnan(x), np.inf, x), axis))⟧",
    },
    "gpu/kernels/weighted.cu": {
        "sign of the centre": "(x_2[u].at[r] ⟦- → +⟧ base.at[r]);",
        "the highest of equals wins": "(b.value == a.value && b.location ⟦< → >⟧ a.location)",
        "a number before NaN": "if (a_nan ⟦|| → &&⟧ b_nan) {",
        "columns of the first tile for all": "if (⟦has_edges && width > n << lanes.column_bits → false⟧) {",
    },
    "fortran/fast/weighted_sums.inc": {
        "sign of the centre": "if (plan%weighted) term = term ⟦- → +⟧ args%sum_v(i)/args%degree(i)",
        "several positions taken for one": "⟦one_position_per_row .and. args%row_offsets(e) == e - 1 → .true.⟧",
    },
    "fortran/fast/rows.c.fypp": {"the last chunk of a sum replaces it": "(total + v * ${N}$) ⟦+= → =⟧ sum[v];"},
    "fortran/fast/products.fypp": {
        "parts of a long row are lost": "source(i, j) = source(i, j)⟦ + source(i, j + step) → ⟧",
    },
    "gpu/kernels/sums.cuh": {"pieces of a hub are lost": "            term = ⟦sums[level] → T(0)⟧;"},
    "gpu/sums.py": {
        "weights of a long row": "   ⟦ → _ = rows.order is None and ⟧sum_long_row_parts(kernels, rows, overflow",
    },
    "fortran/fast/weighted_extrema.inc": {
        "a number after NaN in min": "is_better = .not. (best(f) <= message(f))⟦ .and. best(f) == best(f) → ⟧",
        "NaN after a number in min": "better = ⟦.not. (best(f) <= message(f) → best(f) > message(f⟧) .and. best(f) ==",
    },
    "fortran/fast/weighted_third.fypp": {
        "the highest of equals wins": "if (op /= op_min .and. message ⟦<= → <⟧ best(c)) cycle",
        "not centred": "grad_weight(:, p) = grad_weight(:, p)⟦ - [mean%along_c, mean%both] → ⟧",
        "curvature of the mean": "-1/degree%value**2, ⟦2 → 1⟧/degree%value**3)",
        "a chunk replaces those before": "mean = ⟦mean + part → part⟧\n",
    },
    "gpu/call.py": {
        "arrays of the caller's that are not aligned": "⟦self._given and is_aligned(self._given[field]) → self._given⟧",
    },
}
GEMNET = {
    "src/trigraph/backends/third.py": {
        "the direction stays in a": 'terms(2, {n: t⟦, f"gg_{n}": None → ⟧}, {**of_grads',
        "a replaced input is differentiated": "for k in of_inputs⟦ if k != n → ⟧}})",
        "a term of bwd is left out": "        ⟦add_lower_order_terms(1, grads, of_along) → pass⟧\n",
        "a term replaces those before": "⟦results[fields[n]] + t if fields[n] in results else t → t⟧",
    },
    "pyref/__init__.py": {
        "cotangents of gradients are left out": '⟦*(f"grad_{a.name}" for a in spec.outputs) → *()⟧, *(a.name',
        "derivatives of another size": "np.where(powers[n] == power, c, 0), ⟦-shift → 1 - shift⟧)",
    },
    "fortran/reference/gemnet.fypp": {
        "second-order term of the radial basis dropped": "out_rad_basis(:, e) + ⟦rad_second + rad_first → rad_second⟧",
    },
    "pyref/gemnet.py": {
        "G_e for another edge": 'np.einsum("ecs,ecn->esn", rad_W1, Q_e)[⟦triplets.index → triplets.order⟧]',
    },
    "gpu/kernels/gemnet.cu": {
        "tiles of emb_in overwrite": "*to = add || ⟦c0 > 0 → false⟧ ? *to + sum : sum;",
        "triplets of an edge beyond the first 256": "term = in_level == 0 ? term : ⟦*target + term → *target⟧;",
        "levels are left out": "⟦count / 16 % 16 != 0 ? *sum_at(1, y, z) + sum[y][z] : sum[y][z] → sum[y][z]⟧;",
        "an edge of an atom replaces those before": "⟦own[32 * (u * cols + z)] + values[u][z] → values[u][z]⟧;",
        "edges of an atom beyond the first 16": "total.add_to_p = ⟦total.add_to_p || add → false⟧;",
        "the last edge of an atom has no triplets": "(⟦end > begin && get_edge_triplets(end - 1).size == 0 → false⟧)",
    },
    "gpu/kernels/gemnet_rows.cuh": {
        "columns of a lane beyond its first": "{ return ⟦first + 32 * z < width → z == 0 && first < width⟧; }",
        "rows of a lane beyond its first": "return int(threadIdx.x) / 4 + ⟦8 * i → i⟧;",
        "a chain of a product over columns": "half + (part[i][j][chains - 2] + ⟦part[i][j][chains - 1] → T(0)⟧);",
    },
    "gpu/kernels/matrices.cuh": {
        "a step is copied over the one in use": "begin(x0 + matrix_depth, ⟦other → stage⟧);",
        "columns of a lane beyond its first four": "j % run + ⟦j / run * (lanes_n * run) → j / run * run⟧;",
        "a product replaces the one before": "            if (⟦add → false⟧) {\n                read(to, before);",
    },
    "fortran/fast/gemnet_interaction.inc": {
        "second-order term of P replaces the first": "args%gg_r(:, e), plan%s, p_dot, plan%lc, ⟦.true → .false⟧.",
        "second-order term of G replaces the first": "gg_r(:, e), plan%s, edge%g_rows_dot, plan%lc, ⟦.true → .false⟧.",
        "parts of an atom are left out": "        if (args%atoms%parts > ⟦0 → 1000⟧) call compute_long_atom_edges",
        "cotangents of an atom of several parts": "args%atoms%long_row(⟦l → 1⟧), 1, args%long_q_dot(1, l),",
        "an atom of several parts takes the first": "⟦args%atoms%part(l + 1) - args%atoms%part(l) → 1⟧, outputs%p_dot",
        "an edge of as many triplets as a part has": "        if (n ⟦<= → <⟧ piece) then\n            call compute",
    },
}
FAMILIES = {family: globals()[family.upper()] for family in table.FAMILIES}
