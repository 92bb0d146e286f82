package app

import (
	"context"
	"errors"
)

func runDemo(ctx context.Context, sys System, args demoCmd) error { return errors.New("todo") }
