// Real solid harmonics of a unit vector u = (x, y, z), their directional derivatives, gradients and Hessian-vector products. The
// polynomials need neither trigonometric functions nor division, and are not singular at the poles.
//
// Rows l*l + l + m and l*l + l - m contain s_lm = q_lm(z) Re (x + iy)^m and s_l,-m = q_lm(z) Im (x + iy)^m. The scaled
// derivatives q_lm = (l-m)! / (2m-1)!! d^m P_l / dz^m start at q_mm = 1, and their recurrences have integer coefficients:
//     q_(l+1) = (2l+1) z q_l - (l+m)(l-m) q_(l-1),    q'_(l+1) = (l+1-m) ((2l+1) q_l + (l-m) q'_(l-1)).
// The addition theorem is P_l(u_e.u_f) = sum over the rows of degree l of weight s(u_e) s(u_f), with
//     weight_lm = (2 for m > 0) (2m-1)!!^2 / ((l+m)! (l-m)!).
// S_lm of docs/maths.md is s_lm times the square root of its weight. Different orders m are independent, so warps share the work.
// Derivatives and cotangents of the constant function of degree 0 are set to zero to keep NaNs out of sums.
#pragma once

template <class T> struct Vec {
    T x, y, z;
};

template <class T> __device__ T dot(const Vec<T>& a, const Vec<T>& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

template <class T> __device__ Vec<T> load_vec(const T* vectors, long long e) {
    return {vectors[3 * e], vectors[3 * e + 1], vectors[3 * e + 2]};
}

// Weights of the addition theorem for all rows of degrees l < 8.
template <class T> struct AdditionTheoremWeights {
    T row[64];

    __device__ constexpr AdditionTheoremWeights() : row() {
        for (int l = 0; l < 8; l++) {
            for (int m = 0; m <= l; m++) {
                double weight = m > 0 ? 2 : 1;
                for (int i = 2; i <= m; i++) {
                    weight *= (2 * i - 1) * (2 * i - 1);
                }
                double factorials = 1;
                for (int i = 2; i <= l + m; i++) {
                    factorials *= i * (i <= l - m ? i : 1);
                }
                row[l * l + l + m] = row[l * l + l - m] = T(weight / factorials);
            }
        }
    }
};
__constant__ AdditionTheoremWeights<float> harmonic_weights_float;
__constant__ AdditionTheoremWeights<double> harmonic_weights_double;
__device__ __forceinline__ float harmonic_weight(float, int row) { return harmonic_weights_float.row[row]; }
__device__ __forceinline__ double harmonic_weight(double, int row) { return harmonic_weights_double.row[row]; }

// Real parts c and imaginary parts s of (x + iy)^m, (x + iy)^(m-1) and (x + iy)^(m-2); zero for negative exponents.
template <class T> struct ComplexPowers {
    T c, s, c1, s1, c2, s2;

    __device__ ComplexPowers(T x, T y, int m) : c(T(1)), s(T(0)), c1(T(0)), s1(T(0)), c2(T(0)), s2(T(0)) {
        for (int i = 0; i < m; i++) {
            c2 = c1;
            s2 = s1;
            c1 = c;
            s1 = s;
            c = x * c1 - y * s1;
            s = y * c1 + x * s1;
        }
    }
};

// q_lm and its derivatives with respect to z, by recurrence from degree l = m.
template <class T, int derivatives> struct AssociatedLegendre {
    T q = T(1), q1 = T(0), q2 = T(0);
    T below = T(0), below1 = T(0), below2 = T(0);

    __device__ void advance_degree(int l, int m, T z) {
        const T odd = T(2 * l + 1), up = T(l + 1 - m), both = T((l + 1 - m) * (l - m));
        const T next = odd * z * q - T((l + m) * (l - m)) * below;
        if (derivatives > 1) {
            const T next2 = up * odd * q1 + both * below2;
            below2 = q2;
            q2 = next2;
        }
        if (derivatives > 0) {
            const T next1 = up * odd * q + both * below1;
            below1 = q1;
            q1 = next1;
        }
        below = q;
        q = next;
    }
};

// Computes the harmonics of orders first, first + step, ... and degrees below S, multiplied by their weights if `weighed`.
template <int S, int first, int step, bool weighed, class T>
__device__ __forceinline__ void compute_harmonics(const Vec<T>& u, T* rows) {
#pragma unroll
    for (int m = first; m < S; m += step) {
        const ComplexPowers<T> power(u.x, u.y, m);
        AssociatedLegendre<T, 0> ladder;
#pragma unroll
        for (int l = m; l < S; l++) {
            const T q = weighed ? harmonic_weight(T(0), l * l + l + m) * ladder.q : ladder.q;
            rows[l * l + l + m] = q * power.c;
            if (m > 0) {
                rows[l * l + l - m] = q * power.s;
            }
            ladder.advance_degree(l, m, u.z);
        }
    }
}

// Computes the same harmonics as `compute_harmonics` above, and their directional derivatives along u_dot.
template <int S, int first, int step, bool weighed, class T>
__device__ __forceinline__ void compute_harmonics_and_tangents(const Vec<T>& u, const Vec<T>& u_dot, T* rows,
                                                               T* rows_dot) {
#pragma unroll
    for (int m = first; m < S; m += step) {
        const ComplexPowers<T> power(u.x, u.y, m);
        const T c_dot = T(m) * (power.c1 * u_dot.x - power.s1 * u_dot.y), s_dot = T(m) * (power.s1 * u_dot.x + power.c1 * u_dot.y);
        AssociatedLegendre<T, 1> ladder;
#pragma unroll
        for (int l = m; l < S; l++) {
            const T weight = weighed ? harmonic_weight(T(0), l * l + l + m) : T(1);
            const T q = weight * ladder.q, q_dot = weight * ladder.q1 * u_dot.z;
            rows[l * l + l + m] = q * power.c;
            rows_dot[l * l + l + m] = l > 0 ? q * c_dot + q_dot * power.c : T(0);
            if (m > 0) {
                rows[l * l + l - m] = q * power.s;
                rows_dot[l * l + l - m] = q * s_dot + q_dot * power.s;
            }
            ladder.advance_degree(l, m, u.z);
        }
    }
}

// Adds the gradient of sum_r factors[r] s_r(u) for rows r of orders first, first + step, ... and degrees below `degrees` <= S.
template <int S, int first, int step, class T>
__device__ __forceinline__ void add_harmonics_gradient(int degrees, const Vec<T>& u, const T* factors, Vec<T>& sum) {
#pragma unroll
    for (int m = first; m < S; m += step) {
        const ComplexPowers<T> power(u.x, u.y, m);
        T a = T(0), b = T(0), a1 = T(0), b1 = T(0);
        AssociatedLegendre<T, 1> ladder;
#pragma unroll
        for (int l = m; l < S; l++) {
            if (l < degrees) {
                // For m = 0, factor_s has no effect, because power.s is zero.
                const T factor_c = factors[l * l + l + m], factor_s = factors[l * l + l - m];
                a += ladder.q * factor_c;
                b += ladder.q * factor_s;
                a1 += ladder.q1 * factor_c;
                b1 += ladder.q1 * factor_s;
            }
            ladder.advance_degree(l, m, u.z);
        }
        sum.x += T(m) * (a * power.c1 + b * power.s1);
        sum.y += T(m) * (b * power.c1 - a * power.s1);
        sum.z += a1 * power.c + b1 * power.s;
    }
}

// Adds the Hessian of sum_r factors[r] s_r(u) times u_dot, for the same rows as add_harmonics_gradient.
template <int S, int first, int step, class T>
__device__ __forceinline__ void add_harmonics_hessian_product(int degrees, const Vec<T>& u, const Vec<T>& u_dot,
                                                              const T* factors, Vec<T>& sum) {
#pragma unroll
    for (int m = first; m < S; m += step) {
        const ComplexPowers<T> power(u.x, u.y, m);
        T a = T(0), b = T(0), a1 = T(0), b1 = T(0), a2 = T(0), b2 = T(0);
        AssociatedLegendre<T, 2> ladder;
#pragma unroll
        for (int l = m; l < S; l++) {
            if (l < degrees) {
                const T factor_c = factors[l * l + l + m], factor_s = factors[l * l + l - m];
                a += ladder.q * factor_c;
                b += ladder.q * factor_s;
                a1 += ladder.q1 * factor_c;
                b1 += ladder.q1 * factor_s;
                a2 += ladder.q2 * factor_c;
                b2 += ladder.q2 * factor_s;
            }
            ladder.advance_degree(l, m, u.z);
        }
        const T pairs = T(m * (m - 1));
        const T xx = pairs * (a * power.c2 + b * power.s2), xy = pairs * (b * power.c2 - a * power.s2);
        const T xz = T(m) * (a1 * power.c1 + b1 * power.s1), yz = T(m) * (b1 * power.c1 - a1 * power.s1);
        const T zz = a2 * power.c + b2 * power.s;
        sum.x += xx * u_dot.x + xy * u_dot.y + xz * u_dot.z;
        sum.y += xy * u_dot.x - xx * u_dot.y + yz * u_dot.z;
        sum.z += xz * u_dot.x + yz * u_dot.y + zz * u_dot.z;
    }
}

// P_l(c) and its first two derivatives, by recurrence from l = 0. In unrolled loops, the quotients in `advance_degree`
// are constants.
template <class T> struct Legendre {
    T c, p, d1, d2;
    T below, below1, below2;

    __device__ explicit Legendre(T cosine)
        : c(cosine), p(T(1)), d1(T(0)), d2(T(0)), below(T(0)), below1(T(0)), below2(T(0)) {}

    __device__ __forceinline__ void advance_degree(int l) {
        const T next = T(2 * l + 1) / T(l + 1) * c * p - T(l) / T(l + 1) * below;
        const T next1 = below1 + T(2 * l + 1) * p, next2 = below2 + T(2 * l + 1) * d1;
        below = p;
        below1 = d1;
        below2 = d2;
        p = next;
        d1 = next1;
        d2 = next2;
    }
};
