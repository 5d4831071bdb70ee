"""Wrong lines that `trigraph verify` must find, see test_mutations.py."""

# By family: what is wrong, in which file, and a text that stands there once, with what is right and what is wrong.
GNO = {
    "reference: bias left out": ("fortran/reference/gno.fypp", "    kernel(i, e) = ⟦b_v(i) → 0⟧"),
    "reference: missing sum of the bias": (
        "fortran/reference/gno.fypp",
        "gb_v(i) = ⟦gb_v(i) + grad_kernel → grad_kernel⟧(i, e)",
    ),
    "reference: wrong offset of b_v": ("fortran/reference/gno.fypp", "off_bv = off_v + f*hidden⟦ →  - 1⟧"),
    "reference: kernel for its cotangent": (
        "fortran/reference/gno.fypp",
        "call add_features_grad_${K}$(f_in, f_out, ⟦gg_kernel → kernel⟧(:, e), grad_message(:, i), out_features(:, j))",
    ),
    "pyref: >= for > in relu'": ("pyref/gno.py", "mask = ~(z ⟦<= → <⟧ 0)"),
    "pyref: sign of a second-order term": ("pyref/gno.py", "coords=lambda: s @ Ugg ⟦+ → -⟧ sgg @ U,"),
    "pyref: transposed kernel": (
        "pyref/gno.py",
        "return kernel.reshape(len(kernel), ⟦f_in, f_out → f_out, f_in).swapaxes(1, 2⟧)",
    ),
    "pyref: shared rows overwrite": ("pyref/common.py", "⟦np.add.at(out, index, rows) → out[index] = rows⟧"),
    "fast: >= for > in relu'": (
        "fortran/fast/gno.fypp",
        "s(:z%hidden, q) = merge(0.0_${K}$, s(:z%hidden, q), a(:z%hidden, q) ⟦<= → <⟧ 0)",
    ),
    "fast: second-order term replaces the first": (
        "fortran/fast/gno.fypp",
        "if (z%want_coords) call gemm_packed_${K}$(z%d, n, z%hidden, ut2, w%s, z%ls, coords, z%d, ⟦.true. → .false.⟧)",
    ),
    "gpu: >= for > in relu'": ("gpu/kernels/gno.cu", "return !(z(row, k) ⟦<= → <⟧ T(0));"),
    "gpu: sign of g h^T": ("gpu/kernels/gno.cu", "sum[r].add(⟦left → -left⟧[o[r]] * right[f[r]], e);"),
    "gpu: position for row": ("gpu/kernels/gno.cu", "matrices + (long long)(⟦edge_ids[p] → p⟧) * num_y * num_x"),
    "fast: chunks of a hub added one after the other": (
        "fortran/fast/products.fypp",
        "integer, parameter :: leaf = ⟦128 → 2**30⟧",
    ),
    "fast: a level of a hub's sum is lost": (
        "fortran/fast/products.fypp",
        "if (.not. btest(count, l - 1)⟦ →  .or. l == 2⟧) cycle",
    ),
    "fast: a sum over waves takes all but the last": (
        "fortran/fast/procedures.inc",
        "do wave = 0, ⟦z%waves - 1 → max(z%waves - 2, 0)⟧\n",
    ),
    "fast: a sum over waves takes the first alone": (
        "fortran/fast/procedures.inc",
        "do wave = 0, ⟦z%waves - 1 → 0⟧\n",
    ),
    "gpu: a sum over blocks takes the first alone": (
        "gpu/sums.py",
        "    for first in range(0, ⟦count → min(count, step)⟧, step):\n",
    ),
    "gpu: rows after the last position keep what they were": (
        "gpu/gno.py",
        "⟦        sums.clear_unused(graph, to_coords)\n → ⟧",
    ),
    "gpu: rows wider than a block": (
        "gpu/sums.py",
        "    lane_bits = min(bits(width), ⟦7 → 8⟧)\n    args = (values, rows.order",
    ),
}
DIMENET = {
    "reference: k == i not left out": ("fortran/reference/dimenet.fypp", "src(f) == ⟦dst → src⟧(e)) .or."),
    "reference: gradient of the direction along itself": (
        "fortran/reference/dimenet.fypp",
        "grad_vec(l, e) = scale(⟦(grad_u(l, e) - gc * u(l) → grad_u(l, e⟧) / length, -power)",
    ),
    "reference: second derivative of P_l dropped": (
        "fortran/reference/dimenet.fypp",
        "gc = gc + dy(l) * ⟦gy + ddy(l) * cdot * gydot → gy⟧",
    ),
    "pyref: prefactor of l": ("pyref/dimenet.py", "np.sqrt((2 * np.arange(n_spherical) + ⟦1 → 3⟧) / (4 * np.pi))"),
    "pyref: k == i compares destinations": ("pyref/dimenet.py", "keep = ⟦graph.src → graph.dst⟧[f] != graph.dst[e]"),
    "pyref: sign of a cotangent of directions": (
        "pyref/dimenet.py",
        "gudot = scatter(e, gcosdot * u[f], n) ⟦+ → -⟧ scatter(f, gcosdot * u[e], n)",
    ),
    "pyref: transposed weights": (
        "pyref/dimenet.py",
        "weights[:first].reshape(⟦n_spherical, n_radial, -1 → n_radial, n_spherical, -1).swapaxes(0, 1⟧), weights",
    ),
    "pyref: mixed derivative without a term": (
        "pyref/dimenet.py",
        "mixed = env[1] * x * c ⟦+ env[0] * c - → -⟧ env[0] * freq * x * s",
    ),
    "fast: left-out edges stay in the sum": ("fortran/fast/dimenet_kernels.inc", "        o = ⟦o - s → o⟧\n"),
    "fast: second-order term replaces the first": (
        "fortran/fast/dimenet_node.inc",
        "call linear_to_out_${K}$(z, node, v%out%ld, v%z, v%out%y_dot, ⟦.true. → .false.⟧, v%o)",
    ),
    "fast: norm of the harmonics of order zero": ("fortran/fast/dimenet.fypp", "merge(⟦1, 2 → 2, 1⟧, mm == 0)"),
    "fast: NaN of an edge in no triplet": (
        "fortran/fast/dimenet.fypp",
        "if (⟦z%want_rbf → .false.⟧) call clear_columns_${K}$(b%n_alone, b%alone, z%lr*z%ns, v%gr)",
    ),
    "gpu: weight of the harmonics of order zero": (
        "gpu/kernels/dimenet_harmonics.cuh",
        "double weight = ⟦m > 0 ? 2 : 1 → 2⟧;",
    ),
    "gpu: sign of the left-out edges": (
        "gpu/kernels/dimenet_in_edges.cuh",
        "add_pair(e, ⟦linear ? T(-1) : T → T⟧(1), edge",
    ),
    "gpu: weights not transposed": ("gpu/kernels/dimenet.cu", "? down[⟦c * n_mid + m → m * n_emb + c⟧] : T(0);"),
    "gpu: left-out edges are added": (
        "gpu/kernels/dimenet_out_edges.cuh",
        "value[i][w] ⟦-= → +=⟧ (left >> (part + i) & 1)",
    ),
    "gpu: second derivative of P_l dropped": (
        "gpu/kernels/dimenet_triplets.cuh",
        "by_cosine += ⟦legendre.d2 * cosine_dot * f → T(0)⟧;",
    ),
    "gpu: NaN of an edge in no triplet": (
        "gpu/kernels/dimenet.cu",
        "terms.add(⟦alone[e] ? T(0) : rbf → rbf⟧[e * width + column] * grad_projected[at], k);",
    ),
    "fast: a Bessel function's recurrence where it cancels": (
        "fortran/fast/dimenet_radial.inc",
        "if (y(i) < ${l}$⟦ →  - 1⟧) j(i) = power*p",
    ),
    "fast: distances of other edges": (
        "fortran/fast/dimenet_radial.inc",
        "b%x(e) = real(a%dist(b%edge(⟦e → n + 1 - e⟧)), dp)",
    ),
    "fast: other images that are left out do not turn": (
        "fortran/fast/dimenet_block.inc",
        "        if (⟦.not. z%complete → z%complete⟧) return\n        do t = 1, n",
    ),
}
GAT = {
    "reference: sign of the activation's curvature": (
        "fortran/reference/gat.fypp",
        "& ⟦+ → -⟧ act_curvature_${K}$(activation, raw(p), times(rawdot(p), dpredot))",
    ),
    "reference: cotangent of the weights dropped": (
        "fortran/reference/gat.fypp",
        "gx(c, k, p) = a(c, k) * draw(p)⟦ + adot(c, k) * drawdot(p) → ⟧",
    ),
    "pyref: second order without the softmax's own change": ("pyref/gat.py", "dpost = ⟦v + c * deviation → v⟧"),
    "pyref: sign of a second-order term": ("pyref/gat.py", "rows[0] ⟦+= → -=⟧ postdot[:, :, None] * g"),
    "fast: heads summed, not averaged": (
        "fortran/fast/gat_steps.inc",
        "b%post(:, :b%n) = b%post(:, :b%n)⟦/z%num_heads → ⟧",
    ),
    "gpu: second order without the mean": (
        "gpu/kernels/gat.cu",
        "act.slope(d.raw, d.share * ⟦(d.grad_post() - mean → d.grad_post(⟧))",
    ),
    "fast: the last chunk of a sum replaces it": (
        "fortran/fast/gat_kernels.inc",
        "            total = ⟦total + s → s⟧\n",
    ),
    "fast: as many partial sums of a dot product as a vector holds": (
        "fortran/fast/rows.c.fypp",
        "('float', 'sp', VECTOR_BYTES//4, ⟦16 → VECTOR_BYTES//4⟧)",
    ),
    "fast: sign within tanh": ("fortran/fast/gat_kernels.inc", "p = power*p ⟦+ → -⟧ (power - 1)"),
    "fast: the output of a row of several parts is left out": (
        "fortran/fast/gat_sums.inc",
        "if (step == mean_v .or. ⟦.not. z%want_output → z%want_output⟧) return",
    ),
    "fast: the output of a row of several parts is written where it is not asked for": (
        "fortran/fast/gat_sums.inc",
        "if (step == ⟦mean_v .or. .not. z%want_output → mean_v⟧) return",
    ),
    "gpu: gradients of a long edge row are those of its first piece": (
        "gpu/gat.py",
        "            ⟦self._finish(rows, overflow, out)\n            if → if⟧ k",
    ),
    "gpu: gradients of scores in a long edge row are those of its first piece": (
        "gpu/gat.py",
        "            ⟦sums.finish(self.kernels, rows, totals_overflow, totals) → pass⟧",
    ),
    "fast: scores given back of more than eight heads": (
        "fortran/fast/gat_kernels.inc",
        "            x(h + 1:h + 4, :) = t(:, :n)⟦ →  + h⟧\n",
    ),
    "fast: the mean of heads that are whole vectors": (
        "fortran/fast/rows.c.fypp",
        "at[v] = ⟦(f + v * ${N}$) % ldx → f + v * ${N}$⟧;",
    ),
}
WEIGHTED = {
    "reference: sign of the degree's change": (
        "fortran/reference/weighted.fypp",
        "if (centred) wdot = wdot ⟦- → +⟧ w * ratio",
    ),
    "pyref: weights' gradient not centred": (
        "pyref/weighted.py",
        "centre = ⟦(found.output_embedding if output_embedding is None else output_embedding)[i] → 0⟧",
    ),
    "pyref: location within the row": (
        "pyref/weighted.py",
        "location[i] = ⟦start + pick → pick⟧(messages[start:stop], axis=0)",
    ),
    "gpu: sign of the centre": ("gpu/kernels/weighted.cu", "(x_2[u].at[r] ⟦- → +⟧ base.at[r]);"),
    "gpu: the highest of equals wins": (
        "gpu/kernels/weighted.cu",
        "(b.value == a.value && b.location ⟦< → >⟧ a.location)",
    ),
    "fast: sign of the centre": (
        "fortran/fast/weighted_sums.inc",
        "if (z%weighted) c = c ⟦- → +⟧ a%mean(i)/a%degree(i)",
    ),
    "fast: edges of several positions taken for edges of one": (
        "fortran/fast/weighted_sums.inc",
        "single = ⟦single .and. a%row_offsets(e) == e - 1 → .true.⟧",
    ),
    "fast: the last chunk of a sum replaces it": ("fortran/fast/rows.c.fypp", "(total + v * ${N}$) ⟦+= → =⟧ sum[v];"),
    "fast: parts of a long row are lost": (
        "fortran/fast/products.fypp",
        "source(i, j) = source(i, j)⟦ + source(i, j + step) → ⟧",
    ),
    "gpu: pieces of a hub are lost": ("gpu/kernels/sums.cuh", "            term = ⟦sums[level] → T(0)⟧;"),
    "gpu: gradients of weights in a long edge row are those of its first piece": (
        "gpu/sums.py",
        "    ⟦ → _ = rows.order is None and ⟧finish(kernels, rows, overflow, out, divisor)\n",
    ),
    "gpu: a number before NaN": ("gpu/kernels/weighted.cu", "if (a_nan ⟦|| → &&⟧ b_nan) {"),
    "pyref: weights where there are none": (
        "pyref/weighted.py",
        "    weighted = ⟦edge_weight is not None → True⟧\n    centred",
    ),
    "pyref: a number before NaN in min": (
        "pyref/weighted.py",
        "pick = ⟦np.argmin → (lambda x, axis: np.argmin(np.where(np.isnan(x), np.inf, x), axis))⟧ if",
    ),
    "fast: a number after NaN in min": (
        "fortran/fast/weighted_extrema.inc",
        "takes = .not. (best(f) <= message(f))⟦ .and. best(f) == best(f) → ⟧",
    ),
    "fast: NaN after a number in min": (
        "fortran/fast/weighted_extrema.inc",
        "takes = ⟦.not. (best(f) <= message(f) → best(f) > message(f⟧) .and. best(f) == best(f)",
    ),
    "gpu: arrays of the caller's that are not aligned": (
        "gpu/call.py",
        "return field in ⟦self._given and is_aligned(self._given[field]) → self._given⟧",
    ),
}
GEMNET = {
    "reference: second-order term of the radial basis dropped": (
        "fortran/reference/gemnet.fypp",
        "out_rad_basis(:, e) = out_rad_basis(:, e) + ⟦rad_part + rad_dot → rad_part⟧",
    ),
    "pyref: B_e for another edge": (
        "pyref/gemnet.py",
        'np.einsum("eis,eic->esc", rad_W1, Q_e)[⟦triplets.index → triplets.order⟧]',
    ),
    "gpu: tiles of emb_in overwrite": ("gpu/kernels/gemnet.cu", "*to = ⟦c0 == 0 ? sum : *to + sum → sum⟧;"),
    "fast: second-order term replaces the first": (
        "fortran/fast/gemnet_direct.inc",
        "call gemm_nt_${K}$(z%c, z%i, n, mt2, z%lc, h, z%li, p2, z%lc, ⟦.true. → .false.⟧)",
    ),
    "fast: second-order term of D replaces the first": (
        "fortran/fast/gemnet_interaction.inc",
        "call gemm_nt_${K}$(z%c, z%s, z%i, q, z%lc, a%gg_rad(:, e), z%s, w%d2, z%lc, ⟦.true. → .false.⟧)",
    ),
    "gpu: triplets beyond the first 256 of an edge are left out": (
        "gpu/kernels/gemnet.cu",
        "sum = in_run == 0 ? sum : ⟦*target + sum → *target⟧;",
    ),
    "gpu: runs of triplets are not carried over": (
        "gpu/kernels/gemnet.cu",
        "sum = ⟦(count >> run_bits) % (1 << run_bits) != 0 ? *level(1, at) + sum : sum → sum⟧;",
    ),
    "fast: parts of an atom are left out": (
        "fortran/fast/gemnet_interaction.inc",
        "        if (a%atoms%parts > ⟦0 → 1000⟧) call interaction_long_atoms",
    ),
    "fast: cotangents of an atom of several parts": (
        "fortran/fast/gemnet_interaction.inc",
        "call make_q_${K}$_${I}$(z, a, a%atoms%long_row(⟦l → 1⟧), 1, a%long_q2(1, l), a%long_q(1, l), z%ci)",
    ),
    "fast: an atom of several parts takes the first": (
        "fortran/fast/gemnet_interaction.inc",
        "(z, a, a%atoms%part(l), ⟦a%atoms%part(l + 1) - a%atoms%part(l) → 1⟧, b%p2",
    ),
    "fast: an edge of as many triplets as a part has": (
        "fortran/fast/gemnet_interaction.inc",
        "        if (n ⟦<= → <⟧ piece) then\n            call finish_triplets",
    ),
}
FAMILIES = {"gno": GNO, "dimenet": DIMENET, "gat": GAT, "weighted": WEIGHTED, "gemnet": GEMNET}
