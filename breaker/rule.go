package breaker

// Rule is a breaker policy.
type Rule struct {
	Name string `yaml:"name" json:"name"`
}
